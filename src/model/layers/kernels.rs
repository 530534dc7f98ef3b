//! Which backends networks run on, and which of them keep their tensors in plain memory.

use burn::backend::flex::Flex;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_flex::FlexTensor;

use crate::model::Pool;

/// A backend that networks run on.
pub(in crate::model) trait Kernels: Backend {
    /// Whether [`Kernels::on_plain`] runs anything.
    const PLAIN: bool = false;

    /// Runs a function on tensors in plain memory.
    ///
    /// # Errors
    /// Gives the tensors back where they are not in plain memory.
    fn on_plain<const N: usize, const D: usize, const E: usize>(
        tensors: [Tensor<Self, D>; N],
        _run: impl FnOnce([FlexTensor; N]) -> FlexTensor,
    ) -> Result<Tensor<Self, E>, [Tensor<Self, D>; N]> {
        Err(tensors)
    }

    /// What the runtime has of the device's memory; `None` where tensors are in plain memory.
    fn pool(_device: &Self::Device) -> Option<Pool> {
        None
    }
}

impl Kernels for Flex {
    const PLAIN: bool = true;

    fn on_plain<const N: usize, const D: usize, const E: usize>(
        tensors: [Tensor<Self, D>; N],
        run: impl FnOnce([FlexTensor; N]) -> FlexTensor,
    ) -> Result<Tensor<Self, E>, [Tensor<Self, D>; N]> {
        let result = run(tensors.map(|tensor| tensor.into_primitive().tensor()));
        Ok(Tensor::from_primitive(TensorPrimitive::Float(result)))
    }
}
