//! What the model says of the files.

use stoker::image::{Limits, Pixels, prepare};
use stoker::model::{Bundle, Device, labels, load};

use crate::models::fixture;

/// image-rs/image#1259: all eight orientations get the label of the upright image.
/// huggingface/text-embeddings-inference#648: and get it alone as in a batch.
#[test]
fn each_orientation_gets_the_label_of_the_upright_image() {
    let bundle = Bundle::builtin().unwrap();
    let mut model = load(&bundle, Device::Cpu).unwrap();
    let turned: Vec<Pixels> = (1..=8)
        .map(|orientation| {
            let bytes = fixture(&format!("formats/orientation/{orientation}.jpg"));
            prepare(&bytes, &Limits::default(), &bundle.manifest().preprocess()).unwrap().pixels
        })
        .collect();
    let together = model.classify(&turned.iter().collect::<Vec<_>>()).unwrap();
    let first =
        |logits: &[f32]| labels::top(logits, bundle.labels(), bundle.manifest().activation, 1, 0.0).unwrap().remove(0);
    let alone = first(&model.classify(&[&turned[0]]).unwrap()[0].logits);
    println!("{alone:?}");
    assert!(["tabby", "tiger cat", "Egyptian cat"].contains(&alone.name.as_str()), "{alone:?}");
    for (orientation, answer) in (1..).zip(&together) {
        let found = first(&answer.logits);
        assert_eq!(found.name, alone.name, "orientation {orientation}");
        assert!((found.score - alone.score).abs() < 0.05, "orientation {orientation}: {found:?}, upright {alone:?}");
    }
}
