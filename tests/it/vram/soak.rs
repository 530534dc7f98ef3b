//! Hours in minutes: traffic that comes and goes, and the worker's resident memory meanwhile.
//!
//!     SOAK_MINUTES=20 cargo test --release --test it -- --ignored --nocapture soak
#![allow(clippy::print_stdout, reason = "the figures are what it is for")]
#![allow(clippy::disallowed_methods, reason = "how long it takes is asked of whoever runs it")]

use std::env;
use std::io::Cursor;
use std::time::{Duration, Instant};

use image::{DynamicImage, ImageFormat, RgbImage};

use crate::cli::{pid, signal, worker};
use crate::world::{CAT, COFFEE, ROCKET, World, within};

const MIB: f64 = (1 << 20) as f64;
/// The worker's buffers grow to what the traffic needs in this time.
const WARM_UP: Duration = Duration::from_secs(180);
/// Growth that counts as none, in MiB a minute: a leak of one small picture in a hundred is more.
const FLAT: f64 = 0.5;

/// A picture of a camera's size, and others that cost memory in other ways.
fn pictures() -> Vec<&'static [u8]> {
    let noise = |x: u32, y: u32| (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)).to_le_bytes();
    let camera = RgbImage::from_fn(4000, 3000, |x, y| {
        let [a, b, c, _] = noise(x / 7, y / 5);
        image::Rgb([a, b, c])
    });
    let camera = DynamicImage::ImageRgb8(camera);
    let written = |picture: &DynamicImage, format| -> &'static [u8] {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner().leak()
    };
    let small = camera.thumbnail(1200, 900);
    vec![
        CAT,
        COFFEE,
        ROCKET,
        written(&camera, ImageFormat::Jpeg),
        written(&small, ImageFormat::Png),
        written(&small, ImageFormat::WebP),
        written(&small, ImageFormat::Bmp),
        // No picture, and half of one.
        b"not a picture",
        &CAT[..CAT.len() / 2],
    ]
}

/// Resident memory of a process, in MiB.
fn resident(pid: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<f64>().unwrap() * 1024.0 / MIB
}

/// Slope of a line through the points, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (mean_x, mean_y) =
        (points.iter().map(|(x, _)| x).sum::<f64>() / n, points.iter().map(|(_, y)| y).sum::<f64>() / n);
    let over: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let under: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    over / under
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes SOAK_MINUTES, 20 unless set"]
async fn soak() {
    let minutes: u64 = env::var("SOAK_MINUTES").map_or(20, |text| text.parse().unwrap());
    let mut world = World::local().await;
    let pictures = pictures();
    let mut child = worker(&world, &["--log", "warn", "--grace", "30s"]);
    let pid = pid(&child);
    let (started, mut points, mut done) = (Instant::now(), Vec::new(), 0_usize);
    let mut round = 0_usize;
    while started.elapsed() < WARM_UP + Duration::from_secs(60 * minutes) {
        // Crowds, trickles and silence.
        let (images, pause) = [(300, 0), (1, 500), (40, 2_000), (5, 50), (120, 0), (2, 1_000)][round % 6];
        for image in 0..images {
            world.upload(&format!("{round}-{image}.jpg"), pictures[(round * 7 + image) % pictures.len()]).await;
        }
        for image in 0..images {
            within(world.next()).await;
            world.services().delete_object("photos", &format!("{round}-{image}.jpg")).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
        (done, round) = (done + images, round + 1);
        if started.elapsed() > WARM_UP {
            points.push((started.elapsed().as_secs_f64() / 60.0, resident(&pid)));
        }
    }
    let (first, last) = (points.first().unwrap().1, points.last().unwrap().1);
    let most = points.iter().map(|(_, mib)| *mib).fold(0.0, f64::max);
    let slope = slope(&points);
    println!(
        "{done} messages in {minutes} min after warm-up: {first:.1} MiB at first, {last:.1} at last, {most:.1} at most, \
         {slope:+.3} MiB a minute"
    );
    signal(&pid, "TERM");
    assert_eq!(within(child.wait()).await.unwrap().code(), Some(0));
    assert!(slope < FLAT, "{slope} MiB a minute");
}
