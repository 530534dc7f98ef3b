//! The vision transformer with a class token, with the tensor names of torchvision or timm.
//!
//! Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.1. The position embedding has one row a
//! patch: such a network runs at the input size that its weights were trained at.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, s};

use super::variant::{Variant, VariantError};
use super::{Output, scheme};
use crate::model::layers::{Act, Builder, Conv, ConvSpec, Kernels, LayerNorm, Linear, Padding, attention};
use crate::model::weights::WeightsError;

const LAYER_NORM_EPSILON: f64 = 1e-6;
/// Factor by which a block's second half usually widens its channels.
const EXPANSION: usize = 4;

/// The shape of a network.
#[derive(Debug)]
pub(super) struct Shape {
    depth: usize,
    width: usize,
    heads: usize,
    mlp: usize,
    /// Side of a patch in pixels.
    patch: usize,
}

impl Shape {
    /// A network of patches of 16 × 16 for inputs of `size` (rows, columns).
    ///
    /// # Errors
    /// [`VariantError`] names a field that does not fit.
    pub(super) fn new(
        [depth, width, heads]: [usize; 3],
        variant: &Variant,
        size: [usize; 2],
    ) -> Result<Self, VariantError> {
        variant.allow(&["depth", "width", "heads", "mlp", "patch"])?;
        let width = variant.width_or(width)?;
        Ok(Shape {
            depth: variant.depth_or(depth)?,
            width,
            heads: variant.heads_or(heads, width)?,
            mlp: variant.mlp_or(width * EXPANSION)?,
            patch: variant.patch_or(16, size)?,
        })
    }
}

/// Who named the tensors.
#[derive(Clone, Copy, Debug)]
enum Scheme {
    /// Its first versions had other names in the second half of a block.
    Torchvision {
        first: bool,
    },
    Timm,
}

const SCHEMES: [(&str, Scheme); 2] = [("encoder.", Scheme::Torchvision { first: false }), ("blocks.", Scheme::Timm)];

/// The network on a device.
#[derive(Debug)]
pub(in crate::model) struct Transformer<B: Backend> {
    patches: Conv<B>,
    /// Class token with its position, `[1, 1, width]`.
    class_token: Tensor<B, 3>,
    /// `[1, patches, width]`
    positions: Tensor<B, 3>,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    classifier: Linear<B>,
}

#[derive(Debug)]
struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    /// Queries, keys, values.
    inputs: [Linear<B>; 3],
    output: Linear<B>,
    heads: usize,
    mlp_norm: LayerNorm<B>,
    expand: Linear<B>,
    project: Linear<B>,
}

impl<B: Kernels> Transformer<B> {
    /// Takes the tensors of the network.
    ///
    /// # Errors
    /// [`WeightsError`] names the tensor that does not fit.
    pub(super) fn take(builder: &mut Builder<'_, '_, B>, shape: &Shape, classes: usize) -> Result<Self, WeightsError> {
        let scheme = match scheme(builder.weights, &SCHEMES) {
            Scheme::Torchvision { .. } => {
                let first = builder.weights.shape("encoder.layers.encoder_layer_0.mlp.linear_1.weight").is_some();
                Scheme::Torchvision { first }
            }
            scheme => scheme,
        };
        let &Shape { depth, width, patch, .. } = shape;
        let names = scheme.names();
        let input = builder.size;
        let spec = ConvSpec {
            input: 3,
            output: width,
            kernel: patch,
            stride: patch,
            groups: 1,
            padding: Padding::Each(0),
            activation: Act::None,
        };
        let patches = builder.conv(names.patches, spec)?;
        let count = builder.size[0] * builder.size[1];
        check_positions(builder, names.positions, count + 1, input)?;
        let mut class_token = builder.weights.take(names.class_token, &[1, 1, width])?;
        let positions = builder.weights.take(names.positions, &[1, count + 1, width])?;
        let (first, positions) = positions.split_at(width);
        class_token.iter_mut().zip(first).for_each(|(token, position)| *token += position);
        Ok(Transformer {
            patches,
            class_token: builder.upload(class_token, [1, 1, width]),
            positions: builder.upload(positions.to_vec(), [1, count, width]),
            blocks: (0..depth).map(|index| Block::take(builder, scheme, index, shape)).collect::<Result<_, _>>()?,
            norm: builder.layer_norm(names.norm, width, LAYER_NORM_EPSILON)?,
            classifier: builder.linear(names.classifier, [width, classes], Act::None)?,
        })
    }

    /// Takes normalised pixels `[batch, rows, columns, 3]`.
    pub(super) fn forward(&self, x: Tensor<B, 4>) -> Output<B> {
        let [batch, ..] = x.dims();
        let [_, count, width] = self.positions.dims();
        let patches = self.patches.forward(x).reshape([batch, count, width]) + self.positions.clone();
        let class_token = self.class_token.clone().expand([batch, 1, width]);
        let tokens = Tensor::cat(vec![class_token, patches], 1);
        let tokens = self.blocks.iter().fold(tokens, |tokens, block| block.forward(tokens));
        let class_token = tokens.slice(s![.., 0..1, ..]).reshape([batch, width]);
        let features = self.norm.forward(class_token);
        Output { logits: self.classifier.forward(features.clone()), features }
    }
}

impl<B: Kernels> Block<B> {
    fn take(
        builder: &mut Builder<'_, '_, B>,
        scheme: Scheme,
        index: usize,
        shape: &Shape,
    ) -> Result<Self, WeightsError> {
        let &Shape { width, heads, mlp, .. } = shape;
        let BlockNames { attention_norm, inputs, output, mlp_norm, expand, project } = scheme.block(index);
        Ok(Block {
            attention_norm: builder.layer_norm(&attention_norm, width, LAYER_NORM_EPSILON)?,
            inputs: attention_inputs(builder, &inputs, width)?,
            output: builder.linear(&output, [width, width], Act::None)?,
            heads,
            mlp_norm: builder.layer_norm(&mlp_norm, width, LAYER_NORM_EPSILON)?,
            expand: builder.linear(&expand, [width, mlp], Act::Gelu)?,
            project: builder.linear(&project, [mlp, width], Act::None)?,
        })
    }

    /// Takes and gives `[batch, tokens, width]`.
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [batch, tokens, width] = x.dims();
        let normal = self.attention_norm.forward(x.clone());
        let [queries, keys, values] = self.inputs.each_ref().map(|input| {
            let input = input.forward(normal.clone());
            input.reshape([batch, tokens, self.heads, width / self.heads]).swap_dims(1, 2)
        });
        let mixed = attention(queries, keys, values).swap_dims(1, 2).reshape([batch, tokens, width]);
        let x = self.output.forward_add(mixed, x);
        let wide = self.expand.forward(self.mlp_norm.forward(x.clone()));
        self.project.forward_add(wide, x)
    }
}

/// The layers that make queries, keys and values, which are stored as one.
fn attention_inputs<B: Kernels>(
    builder: &mut Builder<'_, '_, B>,
    (weight, bias): &(String, String),
    width: usize,
) -> Result<[Linear<B>; 3], WeightsError> {
    let weight = builder.weights.take(weight, &[3 * width, width])?;
    let bias = builder.weights.take(bias, &[3 * width])?;
    let part = |index: usize| {
        let weight = &weight[index * width * width..(index + 1) * width * width];
        builder.linear_from(weight, bias[index * width..(index + 1) * width].to_vec(), Act::None)
    };
    Ok([0, 1, 2].map(part))
}

/// Says what a position embedding for another input size means.
fn check_positions<B: Kernels>(
    builder: &Builder<'_, '_, B>,
    name: &str,
    needed: usize,
    [rows, columns]: [usize; 2],
) -> Result<(), WeightsError> {
    match builder.weights.shape(name).as_deref() {
        Some(&[1, found, _]) if found != needed => {
            Err(WeightsError::Positions { name: name.to_owned(), found, needed, rows, columns })
        }
        _ => Ok(()),
    }
}

/// Names outside of the blocks.
struct Names {
    patches: &'static str,
    class_token: &'static str,
    positions: &'static str,
    norm: &'static str,
    classifier: &'static str,
}

/// Names of a block's layers.
struct BlockNames {
    attention_norm: String,
    /// Weight and bias.
    inputs: (String, String),
    output: String,
    mlp_norm: String,
    expand: String,
    project: String,
}

impl Scheme {
    fn names(self) -> Names {
        match self {
            Scheme::Torchvision { .. } => Names {
                patches: "conv_proj",
                class_token: "class_token",
                positions: "encoder.pos_embedding",
                norm: "encoder.ln",
                classifier: "heads.head",
            },
            Scheme::Timm => Names {
                patches: "patch_embed.proj",
                class_token: "cls_token",
                positions: "pos_embed",
                norm: "norm",
                classifier: "head",
            },
        }
    }

    fn block(self, index: usize) -> BlockNames {
        let (prefix, [attention_norm, weight, bias, output, mlp_norm, expand, project]) = match self {
            Scheme::Torchvision { first } => {
                let attention =
                    ["self_attention.in_proj_weight", "self_attention.in_proj_bias", "self_attention.out_proj"];
                let mlp = if first { ["mlp.linear_1", "mlp.linear_2"] } else { ["mlp.0", "mlp.3"] };
                (
                    format!("encoder.layers.encoder_layer_{index}"),
                    ["ln_1", attention[0], attention[1], attention[2], "ln_2", mlp[0], mlp[1]],
                )
            }
            Scheme::Timm => (
                format!("blocks.{index}"),
                ["norm1", "attn.qkv.weight", "attn.qkv.bias", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"],
            ),
        };
        let name = |part| format!("{prefix}.{part}");
        BlockNames {
            attention_norm: name(attention_norm),
            inputs: (name(weight), name(bias)),
            output: name(output),
            mlp_norm: name(mlp_norm),
            expand: name(expand),
            project: name(project),
        }
    }
}
