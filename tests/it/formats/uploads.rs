//! Files as uploads: what the uploader declared, what the content is, and an outcome for each.

use stoker::event::{FailureCode, Status};

use crate::models::fixture;
use crate::world::World;

fn file(name: &str) -> &'static [u8] {
    fixture(&format!("formats/{name}")).leak()
}

/// zulip#39338, libheif#675: a HEIC named .jpg, and the reverse. Apache Beam's ImageNet example: a picture that cannot
/// be decoded is logged and lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_content_decides_and_every_upload_has_an_outcome() {
    let mut world = World::local().await;
    // All of them are declared as image/jpeg.
    for (name, content) in [
        ("picture.jpg", "png/rgb-8.png"),
        ("picture.heic", "jpeg/baseline-420.jpg"),
        ("wide.gif", "inputs/wide.png"),
        ("named.jpg", "jpeg/arithmetic.jpg"),
        ("bomb.jpg", "bombs/png.png"),
        ("phone.jpg", "heic/phone.heic"),
    ] {
        world.upload(name, file(content)).await;
    }
    let worker = world.worker(&[]);
    let results = world.results(6).await;
    for (name, format) in [("picture.jpg", "png"), ("picture.heic", "jpeg"), ("wide.gif", "png")] {
        let result = &results[name];
        assert_eq!(result.status, Status::Labeled, "{name}: {:?}", result.error);
        assert_eq!(result.image.as_ref().unwrap().format, format);
        assert_eq!(result.object.as_ref().unwrap().content_type.as_deref(), Some("image/jpeg"));
    }
    for (name, code, says) in [
        ("named.jpg", FailureCode::UnsupportedFormat, "arithmetic"),
        ("bomb.jpg", FailureCode::TooManyPixels, "3600000000"),
    ] {
        let error = results[name].error.as_ref().unwrap();
        assert_eq!(error.code, code);
        assert!(error.message.contains(says), "{}", error.message);
    }
    let phone = &results["phone.jpg"];
    match &phone.error {
        Some(error) => assert!(error.code == FailureCode::UnsupportedFormat && error.message.contains("HEIC")),
        None => assert_eq!(phone.image.as_ref().unwrap().format, "heic"),
    }
    assert_eq!(phone.object.as_ref().unwrap().content_type.as_deref(), Some("image/jpeg"));
    worker.stop().await.unwrap();
}
