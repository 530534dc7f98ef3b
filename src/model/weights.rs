//! Named tensors out of a safetensors file, each taken once, as `f32`.
//!
//! The file is foreign: a missing, misshapen, left-over or non-finite tensor is an error that names it.

use std::collections::BTreeSet;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

/// How many left-over tensors an error lists.
const MAX_LISTED: usize = 8;

/// A safetensors file, read tensor by tensor.
pub struct Weights<'a> {
    tensors: SafeTensors<'a>,
    unused: BTreeSet<String>,
}

/// Weights that do not fit the network.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// Not a whole safetensors file.
    #[error("not a safetensors file: {0}")]
    Unreadable(safetensors::SafeTensorError),
    /// The network needs a tensor that the file lacks.
    #[error("tensor {name} is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor of another shape.
    #[error("tensor {name} has the shape {found:?}, the network needs {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Shape that the network needs.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor of a type other than F16, BF16 and F32.
    #[error("tensor {name} is of type {found}, not F32, F16 or BF16")]
    Type {
        /// Its name.
        name: String,
        /// Type in the file.
        found: String,
    },
    /// A tensor holds a value that no trained network has.
    #[error("tensor {name} holds {value} at {index}")]
    Value {
        /// Its name.
        name: String,
        /// Position in row-major order.
        index: usize,
        /// The value: not finite, or a variance below zero.
        value: f32,
    },
    /// A picture that is smaller than a kernel by the time it gets there.
    #[error(
        "the input is too small for the network: {rows} × {columns} pixels reach {name}, whose kernel is {kernel} wide"
    )]
    TooSmall {
        /// The layer.
        name: String,
        /// Rows that reach it.
        rows: usize,
        /// Columns that reach it.
        columns: usize,
        /// Side of its kernel in pixels.
        kernel: usize,
    },
    /// A vision transformer's position embedding for another input size.
    #[error(
        "tensor {name} has {found} positions, an input of {columns} × {rows} pixels needs {needed}: a vision transformer \
         runs at the input size that it was trained at"
    )]
    Positions {
        /// The tensor.
        name: String,
        /// Positions in the file.
        found: usize,
        /// Positions that the input needs, one for each patch and one for the class token.
        needed: usize,
        /// Rows of the input.
        rows: usize,
        /// Columns of the input.
        columns: usize,
    },
    /// Tensors that the network does not use: it is not the one that they were trained in.
    #[error("{count} tensors belong to no layer: {}", .listed.join(", "))]
    Unused {
        /// How many.
        count: usize,
        /// The first of them.
        listed: Vec<String>,
    },
}

impl<'a> Weights<'a> {
    /// Reads the table of tensors of a safetensors file.
    ///
    /// # Errors
    /// [`WeightsError::Unreadable`], also for a file that is cut short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WeightsError> {
        let tensors = SafeTensors::deserialize(bytes).map_err(WeightsError::Unreadable)?;
        let unused = tensors.names().into_iter().filter(|name| !is_counter(name)).map(str::to_owned).collect();
        Ok(Weights { tensors, unused })
    }

    /// Takes the tensor `name`, which must have the shape `dims`, in row-major order.
    ///
    /// # Errors
    /// A missing tensor, another shape or type, or a value that is not finite.
    pub fn take(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let tensor = self.tensors.tensor(name).map_err(|_| WeightsError::Missing { name: name.to_owned() })?;
        if tensor.shape() != dims {
            let (expected, found) = (dims.to_vec(), tensor.shape().to_vec());
            return Err(WeightsError::Shape { name: name.to_owned(), expected, found });
        }
        let values: Vec<f32> = match tensor.dtype() {
            Dtype::F32 => tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Dtype::F16 => tensor.data().as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            Dtype::BF16 => {
                tensor.data().as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
            }
            other => return Err(WeightsError::Type { name: name.to_owned(), found: format!("{other:?}") }),
        };
        check_finite(name, &values)?;
        self.unused.remove(name);
        Ok(values)
    }

    /// Shape of the tensor `name`, where there is one.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.tensors.tensor(name).ok().map(|tensor| tensor.shape().to_vec())
    }

    /// Whether there is a tensor whose name begins with `prefix`.
    #[must_use]
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.tensors.names().iter().any(|name| name.starts_with(prefix))
    }

    /// Does without every tensor whose name ends in `suffix`.
    pub fn ignore_suffix(&mut self, suffix: &str) {
        self.unused.retain(|name| !name.ends_with(suffix));
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`WeightsError::Unused`] when tensors are left that nobody took.
    pub fn finish(self) -> Result<(), WeightsError> {
        if self.unused.is_empty() {
            return Ok(());
        }
        Err(WeightsError::Unused {
            count: self.unused.len(),
            listed: self.unused.into_iter().take(MAX_LISTED).collect(),
        })
    }
}

/// How many batches a batch norm was trained on: PyTorch stores it and no network reads it.
pub(crate) fn is_counter(name: &str) -> bool {
    name == "num_batches_tracked" || name.ends_with(".num_batches_tracked")
}

/// Refuses values that are infinite or no number.
pub(super) fn check_finite(name: &str, values: &[f32]) -> Result<(), WeightsError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(WeightsError::Value { name: name.to_owned(), index, value: values[index] }),
        None => Ok(()),
    }
}
