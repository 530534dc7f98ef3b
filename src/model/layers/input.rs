//! The way from bytes to what the first layer reads.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::kernels::Kernels;
use super::{plain, upload};

/// `(byte − mean) / std` of each colour. Pixels travel to a device as bytes, a quarter of what their floats would be.
#[derive(Debug)]
pub(in crate::model) struct Normalise<B: Backend> {
    mean: [f32; 3],
    std: [f32; 3],
    /// Mean and deviation, `[1, 1, 1, 3]`.
    tensors: [Tensor<B, 4>; 2],
    device: B::Device,
}

/// Pixels on a device.
#[derive(Clone, Debug)]
pub(in crate::model) enum Input<B: Backend> {
    /// As they came.
    Bytes(Tensor<B, 4, Int>),
    /// Normalised: where the device is the processor that is no more to carry, and one pass does both.
    Done(Tensor<B, 4>),
}

impl<B: Kernels> Normalise<B> {
    /// With the mean and the deviation of each colour, in bytes.
    pub(in crate::model) fn new(mean: [f32; 3], std: [f32; 3], device: &B::Device) -> Self {
        let tensors = [mean, std].map(|values| upload(values.to_vec(), [1, 1, 1, 3], device));
        Normalise { mean, std, tensors, device: device.clone() }
    }

    /// Puts `images × rows × columns × 3` bytes on the device.
    pub(in crate::model) fn put(&self, rgb: Vec<u8>, [images, rows, columns]: [usize; 3]) -> Input<B> {
        let dims = [images, rows, columns, 3];
        if B::PLAIN {
            let mut values = vec![0.0; rgb.len()];
            plain::normalise(&rgb, self.mean, self.std, &mut values);
            return Input::Done(upload(values, dims, &self.device));
        }
        Input::Bytes(Tensor::from_data(TensorData::new(rgb, dims), (&self.device, DType::U8)))
    }

    /// Gives `[images, rows, columns, 3]`.
    pub(in crate::model) fn forward(&self, pixels: Input<B>) -> Tensor<B, 4> {
        let pixels = match pixels {
            Input::Done(values) => return values,
            Input::Bytes(pixels) => pixels,
        };
        let [mean, std] = self.tensors.clone();
        (pixels.float() - mean) / std
    }
}
