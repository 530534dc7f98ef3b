//! PyTorch's checkpoints: what `torch.save(model.state_dict(), …)` and training loops write.
//!
//! Since PyTorch 1.6 a ZIP archive with a pickle, `data.pkl`, and a stored file for the bytes of each storage; before that,
//! and in many published files, pickles one after another with the storages behind them (PyTorch,
//! `torch/serialization.py`). Tensors are views of storages: their strides are followed, so that a transposed one comes out
//! right.

use std::collections::HashMap;
use std::io::{Cursor, Read as _};

use safetensors::Dtype;
use zip::ZipArchive;

use super::bytes::Reader;
use super::checkpoint::{CheckpointError, Tensor, Tensors};
use super::pickle::{Id, Node, Pickle};

/// Largest pickle in an archive, in bytes: state dicts have a few hundred kilobytes.
const MAX_PICKLE: u64 = 64 << 20;
/// What a file of the time before 1.6 begins with, as a number in a pickle of its own.
const MAGIC: [u8; 14] = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// Names under which training loops put the state dict, in the order in which they are looked for.
const ENTRIES: [&str; 4] = ["state_dict", "model_state_dict", "model_state", "model"];

/// Whether a file is a checkpoint of either kind.
pub(super) fn is_checkpoint(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(&MAGIC)
}

/// Reads the tensors of a checkpoint's state dict: the one called `entry`, or else the one that is found.
pub(super) fn read(bytes: &[u8], entry: Option<&str>) -> Result<Tensors, CheckpointError> {
    if bytes.starts_with(&MAGIC) { read_legacy(bytes, entry) } else { read_archive(bytes, entry) }
}

fn read_archive(bytes: &[u8], entry: Option<&str>) -> Result<Tensors, CheckpointError> {
    let damaged = |error: zip::result::ZipError| CheckpointError::Damaged(format!("ZIP archive: {error}"));
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(damaged)?;
    let names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let pickle = names.iter().find(|name| name.as_str() == "data.pkl" || name.ends_with("/data.pkl"));
    let Some(pickle) = pickle else {
        let torch_script = names.iter().any(|name| name.ends_with("/constants.pkl"));
        return Err(if torch_script {
            CheckpointError::WholeModule("a TorchScript module".to_owned())
        } else {
            CheckpointError::Damaged("ZIP archive without data.pkl".to_owned())
        });
    };
    let root = pickle.trim_end_matches("data.pkl").to_owned();
    if names.iter().any(|name| name.starts_with(&format!("{root}code/"))) {
        return Err(CheckpointError::WholeModule("a TorchScript module".to_owned()));
    }
    let mut file = |name: &str, most: u64| -> Result<Vec<u8>, CheckpointError> {
        let entry = archive.by_name(name).map_err(damaged)?;
        // What is stored is as large as it says; what is compressed could be anything.
        if entry.compression() != zip::CompressionMethod::Stored || entry.size() > most {
            return Err(CheckpointError::Damaged(format!("ZIP archive: {name} is compressed or too large")));
        }
        let mut content = Vec::new();
        entry.take(most).read_to_end(&mut content).map_err(|error| CheckpointError::Damaged(error.to_string()))?;
        Ok(content)
    };
    if names.contains(&format!("{root}byteorder")) && file(&format!("{root}byteorder"), 16)? != b"little" {
        return Err(CheckpointError::Damaged("its numbers are big-endian".to_owned()));
    }
    let content = file(pickle, MAX_PICKLE)?;
    let pickle =
        Pickle::read(&mut Reader::new(&content)).map_err(|error| CheckpointError::Damaged(error.to_string()))?;
    let mut last: Option<(String, Vec<u8>)> = None;
    tensors(&pickle, entry, bytes.len(), |view, take| {
        if last.as_ref().is_none_or(|(key, _)| *key != view.key) {
            last = Some((view.key.clone(), file(&format!("{root}data/{}", view.key), bytes.len() as u64)?));
        }
        take(last.as_ref().map_or(&[][..], |(_, storage)| storage))
    })
}

fn read_legacy(bytes: &[u8], entry: Option<&str>) -> Result<Tensors, CheckpointError> {
    let damaged = |error: &dyn std::fmt::Display| CheckpointError::Damaged(error.to_string());
    let mut reader = Reader::new(bytes);
    let mut next = || Pickle::read(&mut reader).map_err(|error| damaged(&error));
    // Magic number, version of the format, what system wrote it.
    for _ in 0..3 {
        next()?;
    }
    let (state, keys) = (next()?, next()?);
    let mut lengths = HashMap::new();
    for id in 0.. {
        // Every storage that is named, whoever uses it: its length in bytes depends on its type.
        match state.nodes().get(id) {
            Some(Node::Persistent(inner)) => {
                if let Some(Storage { key, dtype, elements }) = storage(&state, *inner) {
                    lengths.insert(key, elements.saturating_mul(size_of(dtype)));
                }
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut storages = HashMap::new();
    for key in keys.items(keys.root()).unwrap_or_default() {
        let key = keys.text(*key).ok_or_else(|| damaged(&"a storage without a name"))?;
        let length = *lengths.get(key).ok_or_else(|| damaged(&"a storage of no tensor"))?;
        reader.array::<8>().map_err(|error| damaged(&error))?;
        storages.insert(key.to_owned(), reader.take(length).map_err(|error| damaged(&error))?);
    }
    tensors(&state, entry, bytes.len(), |view, take| take(storages.get(&view.key).copied().unwrap_or_default()))
}

/// Bytes of all tensors, at most, in times the file's.
const SHARED_TIMES: u64 = 2;

/// Bytes of a type's values.
fn size_of(dtype: Dtype) -> u64 {
    dtype.bitsize() as u64 / 8
}

/// Where the bytes of tensors are.
struct Storage {
    key: String,
    dtype: Dtype,
    elements: u64,
}

/// A tensor as a view of a storage.
struct View {
    key: String,
    dtype: Dtype,
    elements: u64,
    offset: u64,
    shape: Vec<usize>,
    strides: Vec<u64>,
}

/// What gets a storage's bytes and gives a tensor.
type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Tensor, CheckpointError>;

/// Finds the state dict and takes every tensor in it from its storage.
fn tensors(
    pickle: &Pickle,
    entry: Option<&str>,
    file_bytes: usize,
    mut storage: impl FnMut(&View, Take<'_>) -> Result<Tensor, CheckpointError>,
) -> Result<Tensors, CheckpointError> {
    let mut tensors = Tensors::new();
    let mut left = SHARED_TIMES * file_bytes as u64;
    for (name, id) in state_dict(pickle, entry)? {
        let Some(view) = view(pickle, id, &name)? else { continue };
        let tensor = storage(&view, &mut |bytes| take(&view, &name, bytes))?;
        // Tensors may share a storage, and a few do; each is copied here.
        left = left.checked_sub(tensor.data.len() as u64).ok_or_else(|| CheckpointError::Tensor {
            name: name.clone(),
            problem: "and those before it have more values than the file".to_owned(),
        })?;
        tensors.insert(name, tensor);
    }
    if tensors.is_empty() {
        return Err(CheckpointError::NoTensor(keys(pickle, pickle.root())));
    }
    Ok(tensors)
}

/// The named values of the state dict.
fn state_dict(pickle: &Pickle, entry: Option<&str>) -> Result<Vec<(String, Id)>, CheckpointError> {
    let root = match pickle.get(pickle.root()) {
        Node::Dict(items) => items,
        Node::Call(class, _) => return Err(CheckpointError::WholeModule(class_name(pickle, *class))),
        _ => return Err(CheckpointError::Damaged("neither a state dict nor a dictionary with one".to_owned())),
    };
    let named = |items: &[(Id, Id)]| -> Vec<(String, Id)> {
        items.iter().filter_map(|(key, value)| Some((pickle.text(*key)?.to_owned(), *value))).collect()
    };
    let top = named(root);
    let look_for: Vec<&str> = entry.map_or_else(|| ENTRIES.to_vec(), |entry| vec![entry]);
    for wanted in &look_for {
        match top.iter().find(|(name, _)| name == wanted).map(|(_, id)| pickle.get(*id)) {
            Some(Node::Dict(items)) => return Ok(named(items)),
            Some(Node::Call(class, _)) => return Err(CheckpointError::WholeModule(class_name(pickle, *class))),
            _ => {}
        }
    }
    match entry {
        Some(entry) => Err(CheckpointError::Entry { entry: entry.to_owned(), found: keys(pickle, pickle.root()) }),
        None => Ok(top),
    }
}

/// The first keys of a dictionary.
fn keys(pickle: &Pickle, id: Id) -> String {
    let Node::Dict(items) = pickle.get(id) else { return String::new() };
    let named: Vec<&str> = items.iter().filter_map(|(key, _)| pickle.text(*key)).take(8).collect();
    named.join(", ")
}

fn class_name(pickle: &Pickle, class: Id) -> String {
    match pickle.get(class) {
        Node::Global(module, name) => format!("an object of the class {module}.{name}"),
        _ => "an object".to_owned(),
    }
}

/// The tensor that a call makes; `None` for other values.
fn view(pickle: &Pickle, id: Id, name: &str) -> Result<Option<View>, CheckpointError> {
    let mut id = id;
    // A parameter wraps a tensor, and a subclass's tensor wraps the call that makes it: a few times at most.
    for _ in 0..8 {
        let Node::Call(function, arguments) = pickle.get(id) else { return Ok(None) };
        let (Node::Global(module, function), Some(arguments)) = (pickle.get(*function), pickle.items(*arguments))
        else {
            return Ok(None);
        };
        match (module.as_str(), function.as_str(), arguments) {
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state", [inner, ..]) => id = *inner,
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor", [source, offset, shape, strides, ..]) => {
                let view = strided(pickle, [*source, *offset, *shape, *strides]);
                return view.map(Some).ok_or_else(|| CheckpointError::Tensor {
                    name: name.to_owned(),
                    problem: "is of a type that is not read".to_owned(),
                });
            }
            ("torch._utils" | "torch._tensor", function, _) => {
                let problem = format!("is made by {function}, which is not read: save plain tensors on the CPU");
                return Err(CheckpointError::Tensor { name: name.to_owned(), problem });
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

fn strided(pickle: &Pickle, [source, offset, shape, strides]: [Id; 4]) -> Option<View> {
    let Node::Persistent(inner) = pickle.get(source) else { return None };
    let Storage { key, dtype, elements } = storage(pickle, *inner)?;
    let numbers =
        |id| pickle.items(id)?.iter().map(|id| u64::try_from(pickle.int(*id)?).ok()).collect::<Option<Vec<_>>>();
    let shape = numbers(shape)?.into_iter().map(|side| usize::try_from(side).ok()).collect::<Option<Vec<_>>>()?;
    let offset = u64::try_from(pickle.int(offset)?).ok()?;
    Some(View { key, dtype, elements, offset, shape, strides: numbers(strides)? })
}

/// `("storage", class, key, device, elements)`
fn storage(pickle: &Pickle, id: Id) -> Option<Storage> {
    let [_, class, key, _, elements, ..] = pickle.items(id)? else { return None };
    let Node::Global(_, class) = pickle.get(*class) else { return None };
    let dtype = match class.as_str() {
        "FloatStorage" => Dtype::F32,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "DoubleStorage" => Dtype::F64,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        _ => return None,
    };
    // Old files name storages by number.
    let key = pickle.text(*key).map(str::to_owned).or_else(|| Some(pickle.int(*key)?.to_string()))?;
    Some(Storage { key, dtype, elements: u64::try_from(pickle.int(*elements)?).ok()? })
}

/// Copies a view out of its storage, in row-major order.
fn take(view: &View, name: &str, storage: &[u8]) -> Result<Tensor, CheckpointError> {
    let wrong = |problem: &str| CheckpointError::Tensor { name: name.to_owned(), problem: problem.to_owned() };
    let values = view.shape.iter().try_fold(1u64, |all, side| all.checked_mul(*side as u64));
    let size = size_of(view.dtype).max(1);
    // What it says of its storage may be untrue.
    let most = view.elements.min(storage.len() as u64 / size);
    let values = values.filter(|values| *values <= most).ok_or_else(|| wrong("is larger than its storage"))?;
    if view.strides.len() != view.shape.len() {
        return Err(wrong("has another number of strides than of sides"));
    }
    let size = usize::try_from(size).unwrap_or(1);
    let bytes = usize::try_from(values).unwrap_or(usize::MAX).saturating_mul(size);
    let mut data = Vec::new();
    data.try_reserve_exact(bytes).map_err(|_| wrong("does not fit into memory"))?;
    if is_contiguous(view) {
        let start = usize::try_from(view.offset).unwrap_or(usize::MAX).saturating_mul(size);
        let all = storage.get(start..start.saturating_add(bytes));
        data.extend_from_slice(all.ok_or_else(|| wrong("lies beyond the end of its storage"))?);
        return Ok(Tensor { dtype: view.dtype, shape: view.shape.clone(), data });
    }
    let mut index = vec![0usize; view.shape.len()];
    for _ in 0..values {
        let steps = index.iter().zip(&view.strides);
        let place = steps.map(|(at, stride)| stride.saturating_mul(*at as u64)).fold(view.offset, u64::saturating_add);
        let start = usize::try_from(place).unwrap_or(usize::MAX).saturating_mul(size);
        let value = storage.get(start..start.saturating_add(size));
        data.extend_from_slice(value.ok_or_else(|| wrong("lies beyond the end of its storage"))?);
        for (at, side) in index.iter_mut().zip(&view.shape).rev() {
            *at += 1;
            if *at < *side {
                break;
            }
            *at = 0;
        }
    }
    Ok(Tensor { dtype: view.dtype, shape: view.shape.clone(), data })
}

/// Whether the values lie in row-major order, as they nearly always do.
fn is_contiguous(view: &View) -> bool {
    let mut step = 1u64;
    view.shape.iter().zip(&view.strides).rev().all(|(side, stride)| {
        let holds = *side == 1 || *stride == step;
        step = step.saturating_mul(*side as u64);
        holds
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_no_larger_than_the_bytes_that_there_are() {
        let view = View {
            key: "0".to_owned(),
            dtype: Dtype::F32,
            elements: 1 << 40,
            offset: 0,
            shape: vec![1 << 40],
            strides: vec![0],
        };
        let error = take(&view, "w", &[0; 4]).unwrap_err().to_string();
        assert_eq!(error, "tensor w is larger than its storage");
        let one = View { shape: vec![1], ..view };
        assert_eq!(take(&one, "w", &[1, 2, 3, 4]).unwrap().data, [1, 2, 3, 4]);
    }

    #[test]
    fn tensors_that_share_a_storage_do_not_multiply_the_file() {
        let shared =
            b"}(U\x01actorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ\
            K\x00(K\x04t(K\x01ttRq\x00U\x01bh\x00U\x01ch\x00u.";
        let pickle = Pickle::read(&mut Reader::new(shared)).unwrap();
        let read = |file_bytes| tensors(&pickle, None, file_bytes, |_, take| take(&[7; 16]));
        assert_eq!(read(24).unwrap().len(), 3);
        let error = read(16).unwrap_err().to_string();
        assert!(error.contains("have more values than the file"), "{error}");
    }

    #[test]
    fn a_dictionary_without_tensors_says_what_it_holds() {
        let pickle = Pickle::read(&mut Reader::new(b"}(U\x03net}U\x05epochK\x03u.")).unwrap();
        let error = tensors(&pickle, None, 1, |_, take| take(&[])).unwrap_err().to_string();
        assert!(error.contains("it holds net, epoch: --entry"), "{error}");
    }
}
