//! The end of every network: classes, scores and embeddings; and weights that no training leaves.

use safetensors::Dtype;
use serde_json::json;
use stoker::model::{Activation, Device, golden, labels, load};

use super::{Files, NETWORKS, Tensor, WEIGHTS, pixels, relative_error, small, tensors};

/// The last linear layer of each naming scheme, without `.weight`.
fn last_layer(network: &str) -> &'static str {
    match network.split_once('-').unwrap() {
        ("efficientnet", rest) if rest.ends_with("package") => "_fc",
        ("efficientnet", _) => "classifier",
        ("mobilenet", rest) if rest.ends_with("timm") => "classifier",
        ("mobilenet", _) => "classifier.1",
        ("resnet", _) => "fc",
        ("convnext", rest) if rest.ends_with("timm") => "head.fc",
        ("convnext", _) => "classifier.2",
        ("vit", rest) if rest.ends_with("timm") => "head",
        _ => "heads.head",
    }
}

fn values((dtype, _, data): &Tensor) -> Vec<f32> {
    match dtype {
        Dtype::F32 => data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F16 => data.as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::BF16 => data.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
        other => panic!("{other:?}"),
    }
}

fn wide(values: &[f32], shape: Vec<usize>) -> Tensor {
    (Dtype::F32, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

impl Files {
    /// The same network with so many classes, whose last layer repeats the rows of the first one.
    fn repeated(self, name: &str, classes: usize) -> Self {
        let last = last_layer(name);
        let files = self.edit(|tensors| {
            for part in ["weight", "bias"] {
                let tensor = tensors.get_mut(&format!("{last}.{part}")).unwrap();
                let (found, mut shape) = (values(tensor), tensor.1.clone());
                let row = found.len() / shape[0];
                shape[0] = classes;
                let repeated: Vec<f32> = found.iter().copied().cycle().take(classes * row).collect();
                *tensor = wide(&repeated, shape);
            }
        });
        files.classes(classes)
    }

    /// The same network with its last layer under another name.
    fn moved(self, from: &str, to: &str) -> Self {
        self.edit(|tensors| {
            for part in ["weight", "bias"] {
                let tensor = tensors.remove(&format!("{from}.{part}")).unwrap();
                tensors.insert(format!("{to}.{part}"), tensor);
            }
        })
    }
}

#[test]
fn any_number_of_classes_will_do() {
    for name in NETWORKS {
        let (bundle, mut model) = small(name);
        let images = pixels(&bundle);
        let expected = model.classify(&images[..1]).unwrap().remove(0).logits;
        let largest = expected.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        for classes in [1, 2, 2500] {
            let mut model = Files::new(name).repeated(name, classes).load().unwrap();
            let found = model.classify(&images[..1]).unwrap().remove(0).logits;
            assert_eq!(found.len(), classes, "{name}");
            let error =
                found.iter().zip(expected.iter().cycle()).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
            assert!(error <= 1e-5 * largest, "{name} with {classes} classes: {error}");
        }
    }
}

#[test]
fn another_number_of_classes_than_the_weights_have_names_the_last_layer() {
    for name in NETWORKS {
        let error = Files::new(name).classes(2).load().map(|_| ()).unwrap_err();
        assert!(error.contains(&format!("tensor {}.weight has the shape [", last_layer(name))), "{name}: {error}");
        assert!(error.contains("the network needs [2, "), "{name}: {error}");
    }
}

#[test]
fn a_last_layer_that_training_code_replaced_is_found() {
    for (name, from, to) in [
        ("resnet-18-torchvision", "fc", "fc.1"),
        ("resnet-101-timm", "fc", "fc.head.0"),
        ("mobilenet-v2-torchvision", "classifier.1", "classifier"),
        ("mobilenet-v2-timm", "classifier", "classifier.1"),
        ("efficientnet-lite0-package", "_fc", "_fc.1"),
        ("convnext-tiny-torchvision", "classifier.2", "classifier.3"),
        ("convnext-small-timm", "head.fc", "head.fc.1"),
        ("vit-b-16-torchvision", "heads.head", "heads"),
        ("vit-s-16-timm", "head", "head.1"),
    ] {
        let bundle = Files::new(name).moved(from, to).bundle().unwrap();
        let mut model = load(&bundle, Device::Cpu).unwrap_or_else(|error| panic!("{name}, {to}: {error:?}"));
        golden::check(model.as_mut(), &bundle).unwrap();
    }
}

#[test]
fn more_than_one_last_layer_is_refused() {
    let files = Files::new("resnet-18-torchvision").edit(|tensors| {
        tensors.insert("fc.0.weight".to_owned(), (Dtype::F32, vec![2, 2], vec![0; 16]));
    });
    let error = files.moved("fc", "fc.3").load().map(|_| ()).unwrap_err();
    assert!(error.ends_with("tensor fc.weight is missing"), "{error}");
}

#[test]
fn embeddings_are_the_features_or_these_at_length_1() {
    for name in NETWORKS {
        let (bundle, mut raw) = small(name);
        let images = pixels(&bundle);
        let with = |embedding| {
            let mut files = Files::new(name);
            files.manifest["embedding"] = embedding;
            let mut model = files.load().unwrap();
            model.classify(&images).unwrap().into_iter().map(|answer| answer.embedding).collect::<Vec<_>>()
        };
        let normal = with(json!({"normalize": true}));
        for (raw, normal) in raw.classify(&images).unwrap().into_iter().zip(normal) {
            let (raw, normal) = (raw.embedding.unwrap(), normal.unwrap());
            let length = raw.iter().map(|value| value * value).sum::<f32>().sqrt();
            assert!((length - 1.0).abs() > 1e-3, "{name}: features that show nothing");
            let expected: Vec<f32> = raw.iter().map(|value| value / length).collect();
            assert!(relative_error(&normal, &expected) < 1e-5, "{name}");
        }
        assert!(with(serde_json::Value::Null).iter().all(Option::is_none), "{name}");
    }
}

#[test]
fn scores_are_softmax_or_sigmoid_as_the_bundle_says() {
    for (name, activation) in
        [("mobilenet-v2-torchvision", Activation::Sigmoid), ("resnet-50-torchvision", Activation::Softmax)]
    {
        let (bundle, mut model) = small(name);
        assert_eq!(bundle.manifest().activation, activation, "{name}");
        for answer in model.classify(&pixels(&bundle)).unwrap() {
            let classes = bundle.manifest().classes;
            let scores = labels::top(&answer.logits, bundle.labels(), activation, classes, 0.0).unwrap();
            let total: f32 = answer.logits.iter().map(|logit| logit.exp()).sum();
            for label in &scores {
                let class = bundle.labels().iter().position(|name| *name == label.name).unwrap();
                let expected = match activation {
                    Activation::Softmax => answer.logits[class].exp() / total,
                    Activation::Sigmoid => 1.0 / (1.0 + (-answer.logits[class]).exp()),
                };
                assert!(
                    (label.score - expected).abs() < 1e-5,
                    "{name}, {}: {} for {expected}",
                    label.name,
                    label.score
                );
            }
            let sum: f32 = scores.iter().map(|label| label.score).sum();
            assert_eq!((sum - 1.0).abs() < 1e-4, activation == Activation::Softmax, "{name}: {sum}");
        }
    }
}

#[test]
fn values_that_no_training_leaves_name_their_tensor() {
    for name in NETWORKS {
        let names: Vec<String> = tensors(&Files::new(name).files[WEIGHTS]).into_keys().collect();
        let floats = names.iter().filter(|tensor| !tensor.ends_with("num_batches_tracked"));
        for (index, tensor) in floats.enumerate().filter(|(index, _)| index % 9 == 4) {
            let bad = if index % 2 == 0 { f32::NAN } else { f32::INFINITY };
            let files = Files::new(name).edit(|tensors| {
                let entry = tensors.get_mut(tensor).unwrap();
                let mut found = values(entry);
                *found.last_mut().unwrap() = bad;
                *entry = wide(&found, entry.1.clone());
            });
            let error = files.load().map(|_| ()).unwrap_err();
            assert!(error.contains(&format!("tensor {tensor} holds {bad} at ")), "{name}: {error}");
        }
    }
}

#[test]
fn types_that_bundles_do_not_hold_name_their_tensor() {
    let tensor = "layer1.0.bn1.bias";
    let files = Files::new("resnet-18-torchvision").edit(|tensors| {
        let (dtype, shape, data) = tensors.get_mut(tensor).unwrap();
        *data = vec![0; 8 * shape.iter().product::<usize>()];
        *dtype = Dtype::F64;
    });
    let error = files.load().map(|_| ()).unwrap_err();
    assert!(error.contains("tensor layer1.0.bn1.bias is of type F64, not F32, F16 or BF16"), "{error}");
}

#[test]
fn an_unknown_architecture_is_answered_with_all_that_there_are() {
    let mut files = Files::new("resnet-18-torchvision");
    files.manifest["architecture"] = json!("resnet50");
    let error = files.bundle().unwrap_err();
    assert!(error.contains("resnet50"), "{error}");
    for name in NETWORKS {
        let (architecture, _) = split(name);
        assert!(error.contains(&format!("`{architecture}`")), "{architecture}: {error}");
    }
}

/// Architecture and library of a fixture's name.
fn split(name: &str) -> (&str, &str) {
    let end = ["-package", "-timm", "-torchvision"].iter().filter_map(|library| name.find(library)).min().unwrap();
    (&name[..end], &name[end + 1..])
}
