//! One tensor of many images: `Classifier` may spread a batch over threads, which would hide what these tests look for.

use std::path::Path;

use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::Tensor;

use super::{Network, Output};
use crate::model::layers::upload;
use crate::model::weights::Weights;
use crate::model::{Bundle, Manifest};

struct Small {
    name: String,
    bundle: Bundle,
    network: Network<Flex>,
}

/// The networks under `fixtures/networks`, in the order of their names.
fn networks() -> impl Iterator<Item = Small> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/networks");
    let directories = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut directories: Vec<_> = directories.filter(|path| path.is_dir()).collect();
    directories.sort();
    assert!(directories.len() >= 13);
    directories.into_iter().map(|directory| {
        let bundle = Bundle::open(&directory).unwrap();
        let weights = Weights::parse(bundle.weights()).unwrap();
        let network = Network::load(bundle.manifest(), weights, &FlexDevice).unwrap();
        Small { name: directory.file_name().unwrap().to_string_lossy().into_owned(), bundle, network }
    })
}

impl Small {
    /// One tensor of `count` golden images, from number `first` on, round and round.
    fn batch(&self, first: usize, count: usize) -> Tensor<Flex, 4> {
        let Manifest { input, preprocess, .. } = self.bundle.manifest();
        let golden = self.bundle.golden().iter().cycle().skip(first).take(count);
        let values = golden.flat_map(|golden| &golden.pixels.rgb).enumerate().map(|(index, value)| {
            let channel = index % 3;
            (f32::from(*value) - preprocess.mean[channel]) / preprocess.std[channel]
        });
        upload(values.collect(), [count, input.height as usize, input.width as usize, 3], &FlexDevice)
    }

    /// Logits and features of a batch, image by image.
    fn run(&self, first: usize, count: usize) -> Vec<[Vec<f32>; 2]> {
        let Output { logits, features } = self.network.forward(self.batch(first, count));
        assert_eq!((logits.dims()[0], features.dims()[0]), (count, count));
        let rows = |tensor: Tensor<Flex, 2>| -> Vec<Vec<f32>> {
            let width = tensor.dims()[1];
            tensor.into_data().into_vec::<f32>().unwrap().chunks_exact(width).map(<[f32]>::to_vec).collect()
        };
        rows(logits).into_iter().zip(rows(features)).map(|(logits, features)| [logits, features]).collect()
    }
}

/// Largest difference, relative to the largest expected value.
fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    found.iter().zip(expected).fold(0.0f32, |error, (a, b)| error.max((a - b).abs())) / largest
}

#[test]
fn an_answer_does_not_depend_on_the_batch() {
    for small in networks() {
        let images = small.bundle.golden().len();
        let alone: Vec<_> = (0..images).map(|image| small.run(image, 1).remove(0)).collect();
        for batch in [1, 2, 3, 4, 8] {
            for (offset, found) in small.run(1, batch).iter().enumerate() {
                for (found, alone) in found.iter().zip(&alone[(1 + offset) % images]) {
                    let error = relative_error(found, alone);
                    assert!(error <= 1e-5, "{}: image {offset} of {batch} differs by {error:e}", small.name);
                }
            }
        }
    }
}
