//! Trained weights as training code leaves them: a safetensors file or a PyTorch checkpoint in, named tensors out, with the
//! names that the network's own code gives.

use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::torch;
use crate::model::is_counter;

/// What wrappers put in front of every name: `DataParallel`, Lightning and its like, `torch.compile`.
const WRAPPERS: [&str; 6] = ["module.", "model.", "_orig_mod.", "net.", "network.", "backbone."];
/// Tensors of at least this many values may be rounded to half precision: they make up nearly all of a file, and the
/// others, of batch norms above all, suffer from it.
const LARGE: usize = 16 * 1024;

/// A tensor as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Row-major, little-endian.
    pub(super) data: Vec<u8>,
}

pub(super) type Tensors = BTreeMap<String, Tensor>;

/// Which tensors of a file are the network's.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Key of the state dict in a checkpoint's dictionary; `None` looks for the usual ones.
    pub entry: Option<String>,
    /// Only names that begin with this, without it; `None` removes what wrappers are known to put in front of all names.
    pub prefix: Option<String>,
    /// Round tensors of 16,384 values and more to half precision.
    pub half: bool,
}

/// Weights that cannot be made into a bundle's.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Neither kind of file.
    #[error("neither a safetensors file nor a PyTorch checkpoint")]
    Unknown,
    /// A file that is cut short or contradicts itself.
    #[error("damaged, or not what it looks like: {0}")]
    Damaged(String),
    /// A dictionary whose values are no tensors.
    #[error("there is no tensor in it; it holds {0}: --entry names the one with the state dict")]
    NoTensor(String),
    /// Code and all instead of tensors.
    #[error("{0}: save the state dict instead, torch.save(model.state_dict(), …)")]
    WholeModule(String),
    /// The dictionary has no such key.
    #[error("no {entry:?} in it; there are {found}")]
    Entry {
        /// The key.
        entry: String,
        /// The first of those that there are.
        found: String,
    },
    /// No tensor has a name with the prefix.
    #[error("no tensor's name begins with {prefix:?}; they are {found}")]
    Prefix {
        /// The prefix.
        prefix: String,
        /// The first names.
        found: String,
    },
    /// A tensor that cannot be used.
    #[error("tensor {name} {problem}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The bytes of a bundle's `model.safetensors` from those of a checkpoint.
///
/// # Errors
/// [`CheckpointError`] says what the file is or which tensor cannot be used.
pub fn convert(bytes: &[u8], selection: &Selection) -> Result<Vec<u8>, CheckpointError> {
    let tensors = if torch::is_checkpoint(bytes) {
        torch::read(bytes, selection.entry.as_deref())?
    } else {
        read_safetensors(bytes)?
    };
    let mut tensors: Tensors = tensors.into_iter().filter(|(name, _)| !is_counter(name)).collect();
    tensors = match &selection.prefix {
        Some(prefix) => with_prefix(tensors, prefix)?,
        None => unwrapped(tensors),
    };
    for (name, tensor) in &mut tensors {
        narrow(name, tensor, selection.half)?;
    }
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, Tensor { dtype, shape, data })| Ok((name, TensorView::new(*dtype, shape.clone(), data)?)))
        .collect();
    let written = views.and_then(|views| safetensors::serialize(views, None));
    written.map_err(|error| CheckpointError::Damaged(error.to_string()))
}

fn read_safetensors(bytes: &[u8]) -> Result<Tensors, CheckpointError> {
    // The length of the header, then the header, which is JSON.
    if bytes.get(8) != Some(&b'{') {
        return Err(CheckpointError::Unknown);
    }
    let file = SafeTensors::deserialize(bytes).map_err(|error| CheckpointError::Damaged(error.to_string()))?;
    let tensor =
        |view: TensorView<'_>| Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() };
    Ok(file.iter().map(|(name, view)| (name.to_owned(), tensor(view))).collect())
}

fn with_prefix(tensors: Tensors, prefix: &str) -> Result<Tensors, CheckpointError> {
    let found = tensors.keys().take(4).cloned().collect::<Vec<_>>().join(", ");
    let picked: Tensors = tensors
        .into_iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor)))
        .collect();
    if picked.is_empty() { Err(CheckpointError::Prefix { prefix: prefix.to_owned(), found }) } else { Ok(picked) }
}

/// Removes what wrappers put in front of all names, one after another.
fn unwrapped(mut tensors: Tensors) -> Tensors {
    while let Some(wrapper) = WRAPPERS.into_iter().find(|wrapper| tensors.keys().all(|name| name.starts_with(wrapper)))
    {
        if tensors.is_empty() {
            break;
        }
        let bare = |(name, tensor): (String, Tensor)| (name[wrapper.len()..].to_owned(), tensor);
        tensors = tensors.into_iter().map(bare).collect();
    }
    tensors
}

/// Rounds to the types that bundles hold.
fn narrow(name: &str, tensor: &mut Tensor, half: bool) -> Result<(), CheckpointError> {
    if tensor.dtype == Dtype::F64 {
        #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
        let values = tensor.data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32);
        *tensor = Tensor { dtype: Dtype::F32, data: values.flat_map(f32::to_le_bytes).collect(), ..tensor.clone() };
    }
    let values: Vec<f32> = match tensor.dtype {
        Dtype::F32 => tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F16 => tensor.data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::BF16 => tensor.data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
        other => {
            let problem = format!("holds {other:?}, no fractions: it is not a weight that a network here uses");
            return Err(CheckpointError::Tensor { name: name.to_owned(), problem });
        }
    };
    let wrong = |index: usize| {
        let problem = format!("holds {} at {index}", values[index]);
        CheckpointError::Tensor { name: name.to_owned(), problem }
    };
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(wrong(index));
    }
    if half && tensor.dtype == Dtype::F32 && values.len() >= LARGE {
        if let Some(index) = values.iter().position(|value| !f16::from_f32(*value).is_finite()) {
            return Err(wrong(index));
        }
        tensor.data = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        tensor.dtype = Dtype::F16;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use safetensors::{Dtype, SafeTensors};

    use super::{CheckpointError, Selection, convert};

    /// A file of `fixtures/make/checkpoints.py`.
    fn checkpoint(name: &str) -> Vec<u8> {
        std::fs::read(format!("{}/fixtures/checkpoints/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    fn same_as_expected(name: &str, selection: &Selection) {
        let (found, expected) = (convert(&checkpoint(name), selection).unwrap(), checkpoint("expected.safetensors"));
        let (found, expected) =
            (SafeTensors::deserialize(&found).unwrap(), SafeTensors::deserialize(&expected).unwrap());
        let mut names = (found.names(), expected.names());
        names.0.sort();
        names.1.sort();
        assert_eq!(names.0, names.1, "{name}");
        for (tensor, expected) in expected.iter() {
            let found = found.tensor(tensor).unwrap();
            assert_eq!(found.shape(), expected.shape(), "{name}: {tensor}");
            match tensor {
                "half" => assert_eq!(found.dtype(), Dtype::F16),
                "brain" => assert_eq!(found.dtype(), Dtype::BF16),
                // Doubles are rounded as NumPy rounds them.
                _ => assert_eq!(found.data(), expected.data(), "{name}: {tensor}"),
            }
        }
    }

    #[test]
    fn every_format_of_pytorch_gives_the_same_tensors() {
        for name in ["plain.pt", "plain-2.pt", "legacy.pth", "nested.pt"] {
            same_as_expected(name, &Selection::default());
        }
        same_as_expected("entry.pt", &Selection { entry: Some("ema".to_owned()), ..Selection::default() });
        let prefix = Some("model.module.".to_owned());
        same_as_expected("nested.pt", &Selection { prefix, ..Selection::default() });
        let copied = convert(&checkpoint("expected.safetensors"), &Selection::default()).unwrap();
        assert!(SafeTensors::deserialize(&copied).is_ok());
    }

    fn problem(bytes: &[u8], selection: &Selection) -> String {
        convert(bytes, selection).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_state_dict_is_told_apart() {
        let plain = Selection::default();
        let module = problem(&checkpoint("module.pt"), &plain);
        assert!(module.contains("torch.nn.modules.conv.Conv2d: save the state dict instead"), "{module}");
        assert!(problem(&checkpoint("script.pt"), &plain).contains("TorchScript"));
        assert!(matches!(convert(b"GIF89a, or anything else", &plain), Err(CheckpointError::Unknown)));
        let entry = Selection { entry: Some("weights".to_owned()), ..Selection::default() };
        assert!(problem(&checkpoint("nested.pt"), &entry).contains("epoch, loss, optimizer, state_dict"));
        let prefix = Selection { prefix: Some("student.".to_owned()), ..Selection::default() };
        assert!(problem(&checkpoint("plain.pt"), &prefix).contains("begins with \"student.\""));
    }

    #[test]
    fn a_file_cut_or_changed_anywhere_is_an_error_or_a_checkpoint() {
        for name in ["plain.pt", "legacy.pth", "nested.pt", "module.pt", "expected.safetensors"] {
            let whole = checkpoint(name);
            for end in 0..whole.len() {
                assert!(convert(&whole[..end], &Selection::default()).is_err(), "{name} cut to {end}");
            }
            for at in 0..whole.len() {
                for bits in [0x01, 0x80, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] ^= bits;
                    drop(convert(&changed, &Selection::default()));
                }
            }
        }
    }

    #[test]
    fn only_large_tensors_are_rounded_to_half_precision() {
        let data = |values: usize, value: f32| -> Vec<u8> { value.to_le_bytes().repeat(values) };
        let file = |large: f32| {
            let (small, large) = (data(16, 0.1), data(1 << 14, large));
            let view = |data, values| safetensors::tensor::TensorView::new(Dtype::F32, vec![values], data).unwrap();
            safetensors::serialize([("small", view(&small, 16)), ("large", view(&large, 1 << 14))], None).unwrap()
        };
        let half = Selection { half: true, ..Selection::default() };
        let written = convert(&file(0.1), &half).unwrap();
        let written = SafeTensors::deserialize(&written).unwrap();
        assert_eq!(written.tensor("large").unwrap().dtype(), Dtype::F16);
        assert_eq!(written.tensor("small").unwrap().dtype(), Dtype::F32);
        assert_eq!(problem(&file(1e6), &half), "tensor large holds 1000000 at 0");
        assert_eq!(problem(&file(f32::NAN), &Selection::default()), "tensor large holds NaN at 0");
    }
}
