//! Bundles from Cloud Storage, through Google's client, the cache and the fault script.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use google_cloud_auth::credentials::anonymous;
use google_cloud_storage::client::Storage;
use stoker::config::FetchConfig;
use stoker::download::{Cache, DownloadError, Downloader};
use stoker::local::{Call, Content, Fault, Rule, Services, Settings};
use stoker::model::{Bundle, BundleError};

use crate::models::fixture;
use crate::world::within;

mod make;

const LITE0: &str = "models/efficientnet-lite0";
const WEIGHTS: &str = "model.safetensors";
const FILES: [&str; 7] = [
    "model.json",
    WEIGHTS,
    "labels.txt",
    "golden/logits.safetensors",
    "golden/chelsea.png",
    "golden/coffee.png",
    "golden/rocket.png",
];
/// Reads of a whole bundle: one a file, and two for the weights.
const READS: u64 = 8;

/// A directory of this test's own, removed at its end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static SCRATCHES: AtomicU64 = AtomicU64::new(0);
        let name = format!("bundle-{}-{}", std::process::id(), SCRATCHES.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A bucket with the built-in bundle under `lite0/`.
pub(super) struct Bucket {
    pub(super) services: Services,
    storage: Storage,
}

impl Bucket {
    pub(super) async fn new() -> Self {
        let services = Services::start(Settings::default()).await.unwrap();
        services.create_bucket("models").unwrap();
        let storage = Storage::builder().with_endpoint(services.storage_endpoint());
        let storage = storage.with_credentials(anonymous::Builder::new().build()).build().await.unwrap();
        let bucket = Self { services, storage };
        FILES.iter().for_each(|path| bucket.put(path, fixture(&format!("{LITE0}/{path}"))));
        bucket
    }

    fn put(&self, path: &str, bytes: impl Into<Bytes>) {
        let content = Content::new(bytes, "application/octet-stream");
        self.services.put_object("models", &format!("lite0/{path}"), content).unwrap();
    }

    fn fault(&self, rule: Rule) {
        self.services.faults().add(rule).unwrap();
    }

    fn reads(&self) -> u64 {
        self.services.faults().count(Call::Read)
    }

    async fn read(&self, cache: Cache) -> Result<Bundle, DownloadError> {
        self.read_at("gs://models/lite0", cache).await
    }

    async fn read_at(&self, place: &str, cache: Cache) -> Result<Bundle, DownloadError> {
        let config = FetchConfig {
            concurrency: 1,
            timeout: Duration::from_secs(1),
            max_object_bytes: 1,
            budget_bytes: 1,
            quota_project: None,
        };
        let downloader = Downloader::new(self.storage.clone(), cache, &config);
        within(downloader.download(&place.parse().unwrap())).await
    }
}

fn no_cache() -> Cache {
    Cache::new(None, 0)
}

fn cache(directory: &Scratch) -> Cache {
    Cache::new(Some(directory.path().to_owned()), 1 << 30)
}

fn digest() -> String {
    Bundle::builtin().unwrap().digest().to_owned()
}

#[tokio::test]
async fn a_bundle_in_a_bucket_is_the_one_in_the_directory() {
    let bucket = Bucket::new().await;
    for place in ["gs://models/lite0", "gs://models/lite0/"] {
        let bundle = bucket.read_at(place, no_cache()).await.unwrap();
        assert_eq!(bundle.digest(), digest());
        assert_eq!(bundle.golden().len(), 3);
    }
    assert_eq!(bucket.reads(), 2 * READS, "small files in one read, the weights in parts");
}

#[tokio::test]
async fn what_is_cached_is_not_read_again() {
    let (bucket, directory) = (Bucket::new().await, Scratch::new());
    bucket.read(cache(&directory)).await.unwrap();
    assert_eq!(bucket.reads(), READS);
    assert_eq!(bucket.read(cache(&directory)).await.unwrap().digest(), digest());
    assert_eq!(bucket.reads(), READS + 1, "model.json only");
    assert!(directory.files().iter().all(|file| file.file_name().unwrap().len() == 64), "{:?}", directory.files());
}

#[tokio::test]
async fn a_damaged_cache_file_is_read_again() {
    let (bucket, directory) = (Bucket::new().await, Scratch::new());
    bucket.read(cache(&directory)).await.unwrap();
    let largest = directory.files().into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let right = std::fs::read(&largest).unwrap();
    let mut flipped = right.clone();
    flipped[5_000_000] ^= 1;
    let cut = right[..1000].to_vec();
    let long = [&right[..], b"more"].concat();
    for (round, damaged) in (1..).zip([flipped, cut, long]) {
        std::fs::write(&largest, damaged).unwrap();
        assert_eq!(bucket.read(cache(&directory)).await.unwrap().digest(), digest());
        assert_eq!(bucket.reads(), READS + round * 3, "model.json and the two parts of the weights");
        assert!(std::fs::read(&largest).unwrap() == right, "the cache holds it right again");
    }
}

#[tokio::test]
async fn without_a_usable_cache_directory_the_model_is_in_memory() {
    let (bucket, directory) = (Bucket::new().await, Scratch::new());
    let file = directory.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let bundle = bucket.read(Cache::new(Some(file.join("below")), 1 << 30)).await.unwrap();
    assert_eq!(bundle.digest(), digest());
    assert_eq!(std::fs::read(&file).unwrap(), b"in the way");
}

#[tokio::test]
async fn the_cache_keeps_to_its_size_and_drops_what_is_oldest() {
    let (bucket, directory) = (Bucket::new().await, Scratch::new());
    // Of another model, and not the cache's own.
    let (old, foreign) = (directory.path().join("a".repeat(64)), directory.path().join("notes.txt"));
    std::fs::write(&old, vec![0; 500_000]).unwrap();
    std::fs::write(&foreign, "mine").unwrap();
    let past = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(past).unwrap();
    let most = 10_200_000;
    bucket.read(Cache::new(Some(directory.path().to_owned()), most)).await.unwrap();
    let kept: u64 = directory.files().iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(kept <= most && kept > 9_000_000, "{kept} bytes");
    assert!(!old.exists() && foreign.exists());
    // Too small for the weights: they are left out, the rest is kept.
    let small = Scratch::new();
    bucket.read(Cache::new(Some(small.path().to_owned()), 1_000_000)).await.unwrap();
    assert_eq!(small.files().len(), FILES.len() - 2);
}

#[tokio::test]
async fn cut_reset_stalled_and_refused_reads_go_on() {
    for fault in [
        Fault::Truncate(1_000_000),
        Fault::Truncate(0),
        Fault::StallBody(3_000_000),
        Fault::Stall,
        Fault::Reset,
        Fault::Error(503),
        Fault::Error(429),
    ] {
        let bucket = Bucket::new().await;
        bucket.fault(Rule::new(Call::Read, fault).matching(WEIGHTS).times(2));
        bucket.fault(Rule::new(Call::Read, fault).matching("model.json"));
        let bundle = bucket.read(no_cache()).await.unwrap();
        assert_eq!(bundle.digest(), digest(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_body_with_a_wrong_byte_is_read_again_and_else_refused() {
    let (bucket, directory) = (Bucket::new().await, Scratch::new());
    bucket.fault(Rule::new(Call::Read, Fault::Corrupt).matching(WEIGHTS));
    assert_eq!(bucket.read(no_cache()).await.unwrap().digest(), digest());
    bucket.fault(Rule::new(Call::Read, Fault::Corrupt).matching(WEIGHTS).always());
    let error = bucket.read(cache(&directory)).await.unwrap_err();
    assert!(matches!(&error, DownloadError::Bundle(BundleError::Digest { path, .. }) if path == WEIGHTS), "{error}");
    let weights = directory.files().iter().any(|file| file.metadata().unwrap().len() > 1_000_000);
    assert!(!weights, "what is wrong is never cached");
}

#[tokio::test]
async fn what_is_missing_denied_or_of_another_size_is_told_at_once() {
    let bucket = Bucket::new().await;
    let error = bucket.read_at("gs://models/other", no_cache()).await.unwrap_err();
    assert!(error.to_string().starts_with("gs://models/other/model.json does not exist"), "{error}");
    let error = bucket.read_at("gs://elsewhere/lite0", no_cache()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Missing { .. }), "{error}");

    bucket.fault(Rule::new(Call::Read, Fault::Error(403)));
    let error = bucket.read(no_cache()).await.unwrap_err();
    assert!(error.to_string().contains("roles/storage.objectViewer"), "{error}");

    bucket.put(WEIGHTS, fixture(&format!("{LITE0}/{WEIGHTS}"))[..9_000_000].to_vec());
    let error = bucket.read(no_cache()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Bundle(BundleError::Size { found: 9_000_000, .. })), "{error}");

    bucket.put("model.json", vec![b' '; (1 << 20) + 1]);
    let error = bucket.read(no_cache()).await.unwrap_err();
    assert!(matches!(error, DownloadError::TooLarge { .. }), "{error}");
    bucket.put("model.json", "{");
    let error = bucket.read(no_cache()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Bundle(BundleError::Manifest(_))), "{error}");
}

#[tokio::test]
async fn an_outage_ends_in_an_error() {
    let bucket = Bucket::new().await;
    bucket.fault(Rule::new(Call::Read, Fault::Truncate(0)).matching(WEIGHTS).always());
    let error = bucket.read(no_cache()).await.unwrap_err();
    assert!(matches!(error, DownloadError::Failed { .. }), "{error}");
}
