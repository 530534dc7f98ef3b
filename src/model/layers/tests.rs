//! Every layer, in every formulation, against plain loops in `f64`.

use burn::backend::flex::{Flex, FlexDevice};
use burn::tensor::Tensor;
use proptest::prelude::*;

use super::choice::Formulation;
use super::conv::Conv;
use super::fold::{HostConv, transpose};
use super::linear::{LayerNorm, Linear, attention};
use super::plain::Buffers;
use super::pool::{MaxPool, global_average};
use super::spec::{Act, Axis, ConvSpec, Padding};
use super::upload;

/// Largest difference from the loops, relative to the largest value.
const TOLERANCE: f64 = 1e-4;

/// A picture, a convolution for it and what is added to the result.
#[derive(Clone, Debug)]
struct Case {
    conv: HostConv,
    batch: usize,
    x: Vec<f32>,
    residual: Vec<f32>,
}

/// Values between -1 and 1 that look random.
fn values(seed: u64, length: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        // Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014: SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let bits = u16::try_from((z ^ (z >> 31)) >> 48).unwrap();
        f32::from(bits) / 32_768.0 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

fn activation() -> impl Strategy<Value = Act> {
    prop_oneof![Just(Act::None), Just(Act::Relu), Just(Act::Relu6), Just(Act::Gelu)]
}

/// Channels in and out, and groups.
fn channels() -> impl Strategy<Value = (usize, usize, usize)> {
    prop_oneof![
        (1usize..40, 1usize..70).prop_map(|(input, output)| (input, output, 1)),
        (2usize..50).prop_map(|channels| (channels, channels, channels)),
        (100usize..300, 1usize..40).prop_map(|(input, output)| (input, output, 1)),
        (1usize..4, 1usize..4, 2usize..4).prop_map(|(input, output, groups)| (groups * input, groups * output, groups)),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (1usize..8, 1usize..3, 1usize..34, 1usize..34, 1usize..6, any::<u64>());
    (channels(), shape, activation(), 0usize..5).prop_map(
        |((input, output, groups), (kernel, stride, rows, columns, batch, seed), activation, padding)| {
            let padding = if padding == 4 { Padding::Same } else { Padding::Each(padding) };
            let spec = ConvSpec { input, output, kernel, stride, groups, padding, activation };
            conv_case(spec, [rows, columns], batch, seed)
        },
    )
}

/// A convolution of `spec`, with more padding if the picture is smaller than the kernel.
fn conv_case(mut spec: ConvSpec, [rows, columns]: [usize; 2], batch: usize, seed: u64) -> Case {
    let axis = |size, spec: &ConvSpec| Axis::new(size, spec.kernel, spec.stride, spec.padding);
    if axis(rows, &spec).is_none() || axis(columns, &spec).is_none() {
        spec.padding = Padding::Each(spec.kernel / 2);
    }
    let axes = [axis(rows, &spec).unwrap(), axis(columns, &spec).unwrap()];
    let kernel = values(seed, spec.output * spec.input / spec.groups * spec.kernel * spec.kernel);
    let bias = values(seed ^ 1, spec.output);
    let x = values(seed ^ 2, batch * rows * columns * spec.input);
    let residual = values(seed ^ 3, batch * axes[0].output * axes[1].output * spec.output);
    Case { conv: HostConv { spec, kernel, bias, axes }, batch, x, residual }
}

impl Case {
    fn run(&self, formulation: Formulation, add: bool) -> Vec<f32> {
        let [rows, columns] = self.conv.axes;
        let conv = Conv::<Flex>::with(formulation, &self.conv, &Buffers::default(), &FlexDevice);
        let x = tensor(self.x.clone(), [self.batch, rows.input, columns.input, self.conv.spec.input]);
        let out = [self.batch, rows.output, columns.output, self.conv.spec.output];
        let y = if add { conv.forward_add(x, tensor(self.residual.clone(), out)) } else { conv.forward(x) };
        assert_eq!(y.dims(), out);
        host(y)
    }

    fn reference(&self, add: bool) -> Vec<f64> {
        let HostConv { spec, ref kernel, ref bias, axes: [rows, columns] } = self.conv;
        let (inputs, outputs) = (spec.input / spec.groups, spec.output / spec.groups);
        let mut found = Vec::new();
        for image in 0..self.batch {
            for (row, column) in (0..rows.output).flat_map(|row| (0..columns.output).map(move |column| (row, column))) {
                for (output, bias) in bias.iter().enumerate() {
                    let mut sum = f64::from(*bias);
                    for (down, right) in (0..spec.kernel).flat_map(|d| (0..spec.kernel).map(move |r| (d, r))) {
                        let y = (row * spec.stride + down).checked_sub(rows.start).filter(|y| *y < rows.input);
                        let x = (column * spec.stride + right).checked_sub(columns.start);
                        let (Some(y), Some(x)) = (y, x.filter(|x| *x < columns.input)) else { continue };
                        for input in 0..inputs {
                            let channel = output / outputs * inputs + input;
                            let at = ((image * rows.input + y) * columns.input + x) * spec.input + channel;
                            let weight = ((output * inputs + input) * spec.kernel + down) * spec.kernel + right;
                            sum += f64::from(self.x[at]) * f64::from(kernel[weight]);
                        }
                    }
                    if add {
                        sum += f64::from(self.residual[found.len()]);
                    }
                    found.push(activate(spec.activation, sum));
                }
            }
        }
        found
    }

    /// One image of the batch.
    fn image(&self, image: usize) -> Case {
        let part = |values: &[f32]| {
            let each = values.len() / self.batch;
            values[image * each..][..each].to_vec()
        };
        Case { conv: self.conv.clone(), batch: 1, x: part(&self.x), residual: part(&self.residual) }
    }
}

fn activate(activation: Act, x: f64) -> f64 {
    match activation {
        Act::None => x,
        Act::Relu => x.max(0.0),
        Act::Relu6 => x.clamp(0.0, 6.0),
        Act::Gelu => x * normal_distribution(x),
    }
}

/// Φ by integrating the density with Simpson's rule.
fn normal_distribution(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let steps = 400;
    let step = x / f64::from(steps);
    let sum: f64 = (0..=steps)
        .map(|at| {
            let weight = if at == 0 || at == steps { 1.0 } else { f64::from(2 + at % 2 * 2) };
            weight * density(f64::from(at) * step)
        })
        .sum();
    0.5 + sum * step / 3.0
}

fn tensor<const D: usize>(values: Vec<f32>, dims: [usize; D]) -> Tensor<Flex, D> {
    upload(values, dims, &FlexDevice)
}

fn host<const D: usize>(tensor: Tensor<Flex, D>) -> Vec<f32> {
    tensor.into_data().into_vec().unwrap()
}

fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1.0f64, |largest, value| largest.max(value.abs()));
    // A NaN is an error, not skipped.
    let errors = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs() / largest);
    errors.fold(0.0, |error, next| if next <= error { error } else { next })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_formulation_of_a_convolution_equals_plain_loops(case in case(), add in any::<bool>()) {
        let expected = case.reference(add);
        for formulation in Formulation::candidates::<Flex>(&case.conv) {
            let error = relative_error(&case.run(formulation, add), &expected);
            prop_assert!(error <= TOLERANCE, "{formulation:?} is {error:e} off");
        }
    }

    #[test]
    fn an_image_is_the_same_to_the_bit_alone_and_in_a_batch(case in case()) {
        if Formulation::candidates::<Flex>(&case.conv)[0] == Formulation::Own {
            let together = case.run(Formulation::Own, true);
            let alone: Vec<f32> = (0..case.batch).flat_map(|image| case.image(image).run(Formulation::Own, true)).collect();
            prop_assert!(together.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn a_linear_layer_equals_plain_loops(
        (inputs, outputs, rows) in (1usize..600, 1usize..90, 1usize..30),
        activation in activation(),
        seed in any::<u64>(),
    ) {
        let (weight, bias) = (values(seed, inputs * outputs), values(seed ^ 1, outputs));
        let (x, residual) = (values(seed ^ 2, rows * inputs), values(seed ^ 3, rows * outputs));
        let layer = Linear::<Flex>::new(
            transpose(&weight, outputs, inputs), bias.clone(), activation, &Buffers::default(), &FlexDevice,
        );
        let expected = |add: bool| -> Vec<f64> {
            (0..rows * outputs).map(|at| {
                let (row, output) = (at / outputs, at % outputs);
                let products = x[row * inputs..][..inputs].iter().zip(&weight[output * inputs..][..inputs]);
                let sum: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                activate(activation, sum + f64::from(bias[output]) + if add { f64::from(residual[at]) } else { 0.0 })
            }).collect()
        };
        let x = tensor(x.clone(), [1, rows, inputs]);
        let found = host(layer.forward(x.clone()));
        prop_assert!(relative_error(&found, &expected(false)) <= TOLERANCE);
        let found = host(layer.forward_add(x, tensor(residual.clone(), [1, rows, outputs])));
        prop_assert!(relative_error(&found, &expected(true)) <= TOLERANCE);
    }

    #[test]
    fn layer_norm_equals_plain_loops((channels, rows) in (1usize..400, 1usize..20), seed in any::<u64>()) {
        let epsilon = 1e-6;
        let (weight, bias) = (values(seed, channels), values(seed ^ 1, channels));
        let x = values(seed ^ 2, rows * channels);
        let layer = LayerNorm::<Flex>::new(weight.clone(), bias.clone(), epsilon, &Buffers::default(), &FlexDevice);
        let mut expected = Vec::new();
        for x in x.chunks_exact(channels) {
            let count = f64::from(u32::try_from(channels).unwrap());
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
            let normal = x.iter().map(|x| (f64::from(*x) - mean) / (variance + epsilon).sqrt());
            expected.extend(normal.zip(weight.iter().zip(&bias)).map(|(x, (w, b))| x * f64::from(*w) + f64::from(*b)));
        }
        let found = host(layer.forward(tensor(x, [rows, channels])));
        prop_assert!(relative_error(&found, &expected) <= TOLERANCE);
    }

    #[test]
    fn pools_equal_plain_loops(
        (channels, rows, columns, batch) in (1usize..40, 3usize..30, 3usize..30, 1usize..4),
        (kernel, stride, padding) in (2usize..4, 1usize..3, 0usize..2),
        seed in any::<u64>(),
    ) {
        let x = values(seed, batch * rows * columns * channels);
        let axes = [rows, columns].map(|size| Axis::new(size, kernel, stride, Padding::Each(padding)).unwrap());
        let pool = MaxPool { kernel, stride, padding, axes, buffers: Buffers::default() };
        let at = |image: usize, row: usize, column: usize, channel: usize| {
            f64::from(x[((image * rows + row) * columns + column) * channels + channel])
        };
        let (mut largest, mut means) = (Vec::new(), Vec::new());
        for image in 0..batch {
            for (row, column) in (0..axes[0].output).flat_map(|r| (0..axes[1].output).map(move |c| (r, c))) {
                for channel in 0..channels {
                    let inside = |start: usize, size: usize| {
                        (start * stride..start * stride + kernel)
                            .filter_map(move |at| at.checked_sub(padding).filter(|at| *at < size))
                    };
                    let pixels = inside(row, rows).flat_map(|y| inside(column, columns).map(move |x| (y, x)));
                    largest.push(pixels.map(|(y, x)| at(image, y, x, channel)).fold(f64::MIN, f64::max));
                }
            }
            for channel in 0..channels {
                let pixels = (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x)));
                let sum: f64 = pixels.map(|(y, x)| at(image, y, x, channel)).sum();
                means.push(sum / f64::from(u32::try_from(rows * columns).unwrap()));
            }
        }
        let x = tensor(x.clone(), [batch, rows, columns, channels]);
        prop_assert!(relative_error(&host(pool.forward(x.clone())), &largest) == 0.0);
        prop_assert!(relative_error(&host(global_average(x)), &means) <= TOLERANCE);
    }

    #[test]
    fn attention_equals_plain_loops(
        (batch, heads, tokens, width) in (1usize..3, 1usize..4, 1usize..20, 1usize..40),
        seed in any::<u64>(),
    ) {
        let part = |salt: u64| values(seed ^ salt, batch * heads * tokens * width);
        let (q, k, v) = (part(0), part(1), part(2));
        let mut expected = Vec::new();
        for head in 0..batch * heads {
            let row = |all: &[f32], token: usize| -> Vec<f64> {
                all[(head * tokens + token) * width..][..width].iter().map(|x| f64::from(*x)).collect()
            };
            for token in 0..tokens {
                let scale = f64::from(u32::try_from(width).unwrap()).sqrt();
                let scores = (0..tokens).map(|other| {
                    row(&q, token).iter().zip(row(&k, other)).map(|(a, b)| a * b).sum::<f64>() / scale
                });
                let weights: Vec<f64> = scores.map(f64::exp).collect();
                let total: f64 = weights.iter().sum();
                for channel in 0..width {
                    let mixed = weights.iter().enumerate().map(|(other, weight)| weight * row(&v, other)[channel]);
                    expected.push(mixed.sum::<f64>() / total);
                }
            }
        }
        let dims = [batch, heads, tokens, width];
        let found = attention(tensor(q, dims), tensor(k, dims), tensor(v, dims));
        prop_assert!(relative_error(&host(found), &expected) <= TOLERANCE);
    }
}

/// Shapes that networks have and random ones rarely reach: several blocks of depth, rows and columns.
#[test]
fn large_convolutions_equal_plain_loops() {
    let dense = |input, output, kernel, stride| ConvSpec {
        input,
        output,
        kernel,
        stride,
        groups: 1,
        padding: Padding::Each(kernel / 2),
        activation: Act::Relu,
    };
    let depthwise =
        |channels, kernel, stride| ConvSpec { groups: channels, ..dense(channels, channels, kernel, stride) };
    let cases = [
        (dense(600, 100, 1, 1), [14, 14]),
        (dense(3, 32, 3, 2), [65, 63]),
        (dense(100, 70, 3, 1), [14, 15]),
        (dense(3, 64, 7, 2), [56, 57]),
        (dense(3, 48, 16, 16), [64, 64]),
        (depthwise(96, 3, 2), [57, 61]),
        (depthwise(40, 7, 1), [40, 37]),
        (depthwise(120, 5, 1), [14, 14]),
        (depthwise(36, 3, 1), [60, 64]),
    ];
    for (spec, size) in cases {
        let case = conv_case(spec, size, 2, 7);
        let expected = case.reference(false);
        for formulation in Formulation::candidates::<Flex>(&case.conv) {
            let error = relative_error(&case.run(formulation, false), &expected);
            assert!(error <= TOLERANCE, "{spec:?}: {formulation:?} is {error:e} off");
        }
    }
}

#[test]
fn the_processor_has_own_kernels_beside_those_of_the_library() {
    let spec = ConvSpec {
        input: 32,
        output: 32,
        kernel: 3,
        stride: 1,
        groups: 32,
        padding: Padding::Same,
        activation: Act::Relu6,
    };
    let candidates = |spec| Formulation::candidates::<Flex>(&conv_case(spec, [8, 8], 1, 0).conv);
    use Formulation::{Library, Own, Product, Shifts};
    assert_eq!(candidates(spec), [Own, Library, Shifts]);
    assert_eq!(candidates(ConvSpec { groups: 1, kernel: 1, ..spec }), [Own, Product, Library]);
    assert_eq!(candidates(ConvSpec { groups: 4, ..spec }), [Library]);
}
