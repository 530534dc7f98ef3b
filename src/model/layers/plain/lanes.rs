//! What the kernels share: the width of a vector, and activations on one.

use pulp::{Arch, Simd, WithSimd};

use crate::model::layers::Act;

/// `f32` values in a vector.
pub(super) fn lanes(arch: Arch) -> usize {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    arch.dispatch(Lanes)
}

/// Cuts off what ReLU does, on a vector in a register. [`Finish`] does the rest.
#[inline(always)]
pub(super) fn cut<S: Simd>(simd: S, act: Act, x: S::f32s) -> S::f32s {
    // In this order a NaN stays one, on vectors; the few processors without make it the bound.
    match act {
        Act::None | Act::Gelu => x,
        Act::Relu => simd.max_f32s(simd.splat_f32s(0.0), x),
        Act::Relu6 => simd.min_f32s(simd.splat_f32s(6.0), simd.max_f32s(simd.splat_f32s(0.0), x)),
    }
}

/// What an activation needs more than [`cut`], on values that were stored: where the sums are, its many instructions
/// would drive them out of the registers.
pub(super) struct Finish<'a> {
    pub(super) act: Act,
    pub(super) values: &'a mut [f32],
}

impl WithSimd for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.act != Act::Gelu {
            return;
        }
        let (vectors, rest) = S::as_mut_simd_f32s(self.values);
        for x in vectors {
            *x = gelu(simd, *x);
        }
        let x = gelu(simd, simd.partial_load_f32s(rest));
        simd.partial_store_f32s(rest, x);
    }
}

/// `x Φ(x)`. The error function is the quotient of polynomials that Eigen uses for it (`generic_fast_erf_float`), within
/// 3e-7 of the exact one; beyond 4 it is 1 in `f32`.
#[inline(always)]
fn gelu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    const UP: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_598e-3,
        -1.609_603_3e-2,
    ];
    const DOWN: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2];
    let splat = |value| simd.splat_f32s(value);
    let polynomial = |coefficients: &[f32], x| {
        coefficients[1..].iter().fold(splat(coefficients[0]), |sum, next| simd.mul_add_e_f32s(sum, x, splat(*next)))
    };
    let z = simd.mul_f32s(x, splat(std::f32::consts::FRAC_1_SQRT_2));
    let z = simd.min_f32s(simd.max_f32s(z, splat(-4.0)), splat(4.0));
    let square = simd.mul_f32s(z, z);
    let erf = simd.div_f32s(simd.mul_f32s(z, polynomial(&UP, square)), polynomial(&DOWN, square));
    let half = simd.mul_f32s(x, splat(0.5));
    simd.mul_add_e_f32s(half, erf, half)
}
