//! Arithmetic in GF(2⁸) modulo x⁸ + x⁴ + x³ + x² + 1 (0x11D), the field of RFC 8681 §3.7.1 and RFC 5510 §8.1.
//!
//! The hot loop of the code is [`mul_add`], y ⊕= c·x over the bytes of two packets. A product with a constant
//! is linear in the bits of the other factor, hence the sum of what two tables of 16 entries give for the two
//! halves of a byte, and processors look up 16 or 32 such entries with one instruction (PSHUFB, TBL). Which
//! instruction set there is, is found out when the program runs.
//!
//! Where there is none, [`mul_add`] multiplies bit by bit, which a compiler turns into whatever vectors the
//! architecture always has.

/// The polynomial without its highest term, which the byte has no room for.
const REDUCTION: u8 = 0x1d;

/// a·x for the generator x.
const fn times_x(a: u8) -> u8 {
    (a << 1) ^ (REDUCTION * (a >> 7))
}

/// a·b, as the definition says it.
pub const fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= a * (b & 1);
        a = times_x(a);
        b >>= 1;
    }
    product
}

/// The element whose product with `a` is 1; 0 for 0, which has none.
pub const fn inverse(a: u8) -> u8 {
    INVERSES[a as usize]
}

/// Products of one constant with the values of the lower half of a byte, and with those of the upper half.
struct Nibbles {
    low: [u8; 16],
    high: [u8; 16],
}

static NIBBLES: [Nibbles; 256] = {
    let mut tables = [const { Nibbles { low: [0; 16], high: [0; 16] } }; 256];
    let mut c = 0;
    while c < 256 {
        let mut value = 0;
        while value < 16 {
            tables[c].low[value] = mul(c as u8, value as u8);
            tables[c].high[value] = mul(c as u8, (value as u8) << 4);
            value += 1;
        }
        c += 1;
    }
    tables
};

static INVERSES: [u8; 256] = {
    let mut inverses = [0; 256];
    // x generates all elements but 0, so that the inverse of xⁱ is x²⁵⁵⁻ⁱ.
    let mut powers = [1; 256];
    let mut i = 1;
    while i < 256 {
        powers[i] = times_x(powers[i - 1]);
        i += 1;
    }
    i = 0;
    while i < 256 {
        inverses[powers[i] as usize] = powers[255 - i];
        i += 1;
    }
    inverses[0] = 0;
    inverses
};

/// y ⊕= c·x. Bytes of `y` behind the end of `x` stay as they are, as if zeros followed `x`.
///
/// # Panics
/// `x` is longer than `y`.
pub fn mul_add(y: &mut [u8], c: u8, x: &[u8]) {
    assert!(x.len() <= y.len(), "a symbol of {} bytes does not fit into {}", x.len(), y.len());
    let y = &mut y[..x.len()];
    match c {
        0 => {}
        1 => y.iter_mut().zip(x).for_each(|(y, x)| *y ^= x),
        _ => best_kernel()(y, c, x),
    }
}

/// y = c·y.
pub fn scale(y: &mut [u8], c: u8) {
    // (c ⊕ 1)·y ⊕ y; the copy costs little, as this is done once for each packet that is recovered.
    if c != 1 {
        let copy = y.to_vec();
        mul_add(y, c ^ 1, &copy);
    }
}

/// y ⊕= c·x for slices of the same length.
type Kernel = fn(&mut [u8], u8, &[u8]);

/// The fastest kernel that this processor has.
fn best_kernel() -> Kernel {
    kernels().next().map_or(portable as Kernel, |kernel| kernel.1)
}

/// Every kernel that this processor has, fastest first, with its name.
fn kernels() -> impl Iterator<Item = (&'static str, Kernel)> {
    vectors::kernels().into_iter().flatten().chain([("portable", portable as Kernel)])
}

/// The name of the instruction set that [`mul_add`] uses on this processor.
pub fn instruction_set() -> &'static str {
    kernels().next().map_or("portable", |kernel| kernel.0)
}

/// Multiplies bit by bit: c·x is the sum of those xⁱ·x whose bit is set in c.
fn portable(y: &mut [u8], c: u8, x: &[u8]) {
    let (wide_y, rest_y) = y.as_chunks_mut::<32>();
    let (wide_x, rest_x) = x.as_chunks::<32>();
    for (y, x) in wide_y.iter_mut().zip(wide_x) {
        let mut power = *x;
        for bit in 0..8 {
            let mask = (c >> bit & 1).wrapping_neg();
            for (y, power) in y.iter_mut().zip(&mut power) {
                *y ^= *power & mask;
                *power = times_x(*power);
            }
        }
    }
    by_table(rest_y, c, rest_x);
}

/// One byte after the other, for the end of a packet.
fn by_table(y: &mut [u8], c: u8, x: &[u8]) {
    let Nibbles { low, high } = &NIBBLES[usize::from(c)];
    for (y, x) in y.iter_mut().zip(x) {
        *y ^= low[usize::from(x & 15)] ^ high[usize::from(x >> 4)];
    }
}

/// Intrinsics that touch no pointer are safe inside a function that has their target feature. Vectors are put
/// together of integers and taken apart again, which the compiler turns into one load and one store. What is
/// left is the call of such a function, which nothing but `unsafe` can express: one block for each
/// instruction set.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_and_si128, _mm_cvtsi128_si64, _mm_set1_epi8, _mm_setr_epi32, _mm_shuffle_epi8,
        _mm_srli_epi64, _mm_unpackhi_epi64, _mm_xor_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
        _mm256_extract_epi64, _mm256_set1_epi8, _mm256_setr_epi32, _mm256_shuffle_epi8, _mm256_srli_epi64,
        _mm256_xor_si256,
    };

    use super::{Kernel, NIBBLES, Nibbles, by_table};

    pub(super) fn kernels() -> [Option<(&'static str, Kernel)>; 2] {
        [
            is_x86_feature_detected!("avx2").then_some(("AVX2", avx2 as Kernel)),
            is_x86_feature_detected!("ssse3").then_some(("SSSE3", ssse3 as Kernel)),
        ]
    }

    fn avx2(y: &mut [u8], c: u8, x: &[u8]) {
        // SAFETY: `kernels` gives this function away only where the processor has AVX2.
        unsafe { with_avx2(y, c, x) }
    }

    fn ssse3(y: &mut [u8], c: u8, x: &[u8]) {
        // SAFETY: `kernels` gives this function away only where the processor has SSSE3.
        unsafe { with_ssse3(y, c, x) }
    }

    #[target_feature(enable = "avx2")]
    fn with_avx2(y: &mut [u8], c: u8, x: &[u8]) {
        let Nibbles { low, high } = &NIBBLES[usize::from(c)];
        let low = _mm256_broadcastsi128_si256(load_16(low));
        let high = _mm256_broadcastsi128_si256(load_16(high));
        let half = _mm256_set1_epi8(15);
        let (wide_y, rest_y) = y.as_chunks_mut::<32>();
        let (wide_x, rest_x) = x.as_chunks::<32>();
        for (y, x) in wide_y.iter_mut().zip(wide_x) {
            let x = load_32(x);
            let of_low = _mm256_shuffle_epi8(low, _mm256_and_si256(x, half));
            let of_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(x), half));
            let product = _mm256_xor_si256(of_low, of_high);
            store_32(y, _mm256_xor_si256(load_32(y), product));
        }
        by_table(rest_y, c, rest_x);
    }

    #[target_feature(enable = "ssse3")]
    fn with_ssse3(y: &mut [u8], c: u8, x: &[u8]) {
        let Nibbles { low, high } = &NIBBLES[usize::from(c)];
        let (low, high) = (load_16(low), load_16(high));
        let half = _mm_set1_epi8(15);
        let (wide_y, rest_y) = y.as_chunks_mut::<16>();
        let (wide_x, rest_x) = x.as_chunks::<16>();
        for (y, x) in wide_y.iter_mut().zip(wide_x) {
            let x = load_16(x);
            let of_low = _mm_shuffle_epi8(low, _mm_and_si128(x, half));
            let of_high = _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi64::<4>(x), half));
            let product = _mm_xor_si128(of_low, of_high);
            store_16(y, _mm_xor_si128(load_16(y), product));
        }
        by_table(rest_y, c, rest_x);
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load_16(bytes: &[u8; 16]) -> __m128i {
        let word = |i: usize| i32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        _mm_setr_epi32(word(0), word(4), word(8), word(12))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_32(bytes: &[u8; 32]) -> __m256i {
        let word = |i: usize| i32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        _mm256_setr_epi32(word(0), word(4), word(8), word(12), word(16), word(20), word(24), word(28))
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn store_16(bytes: &mut [u8; 16], vector: __m128i) {
        bytes[..8].copy_from_slice(&_mm_cvtsi128_si64(vector).to_le_bytes());
        bytes[8..].copy_from_slice(&_mm_cvtsi128_si64(_mm_unpackhi_epi64(vector, vector)).to_le_bytes());
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store_32(bytes: &mut [u8; 32], vector: __m256i) {
        bytes[..8].copy_from_slice(&_mm256_extract_epi64::<0>(vector).to_le_bytes());
        bytes[8..16].copy_from_slice(&_mm256_extract_epi64::<1>(vector).to_le_bytes());
        bytes[16..24].copy_from_slice(&_mm256_extract_epi64::<2>(vector).to_le_bytes());
        bytes[24..].copy_from_slice(&_mm256_extract_epi64::<3>(vector).to_le_bytes());
    }
}

/// As on x86_64; every 64-bit ARM processor has NEON.
#[cfg(target_arch = "aarch64")]
mod vectors {
    use std::arch::aarch64::{
        uint8x16_t, vandq_u8, vcombine_u8, vcreate_u8, vdupq_n_u8, veorq_u8, vgetq_lane_u64, vqtbl1q_u8,
        vreinterpretq_u64_u8, vshrq_n_u8,
    };

    use super::{Kernel, NIBBLES, Nibbles, by_table};

    pub(super) fn kernels() -> [Option<(&'static str, Kernel)>; 1] {
        [std::arch::is_aarch64_feature_detected!("neon").then_some(("NEON", neon as Kernel))]
    }

    fn neon(y: &mut [u8], c: u8, x: &[u8]) {
        // SAFETY: `kernels` gives this function away only where the processor has NEON.
        unsafe { with_neon(y, c, x) }
    }

    #[target_feature(enable = "neon")]
    fn with_neon(y: &mut [u8], c: u8, x: &[u8]) {
        let Nibbles { low, high } = &NIBBLES[usize::from(c)];
        let (low, high, half) = (load(low), load(high), vdupq_n_u8(15));
        let (wide_y, rest_y) = y.as_chunks_mut::<16>();
        let (wide_x, rest_x) = x.as_chunks::<16>();
        for (y, x) in wide_y.iter_mut().zip(wide_x) {
            let x = load(x);
            let product = veorq_u8(vqtbl1q_u8(low, vandq_u8(x, half)), vqtbl1q_u8(high, vshrq_n_u8::<4>(x)));
            store(y, veorq_u8(load(y), product));
        }
        by_table(rest_y, c, rest_x);
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn load(bytes: &[u8; 16]) -> uint8x16_t {
        let (halves, _) = bytes.as_chunks::<8>();
        vcombine_u8(vcreate_u8(u64::from_le_bytes(halves[0])), vcreate_u8(u64::from_le_bytes(halves[1])))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn store(bytes: &mut [u8; 16], vector: uint8x16_t) {
        let words = vreinterpretq_u64_u8(vector);
        bytes[..8].copy_from_slice(&vgetq_lane_u64::<0>(words).to_le_bytes());
        bytes[8..].copy_from_slice(&vgetq_lane_u64::<1>(words).to_le_bytes());
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod vectors {
    use super::Kernel;

    pub(super) fn kernels() -> [Option<(&'static str, Kernel)>; 0] {
        []
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_a_field_whose_generator_is_x() {
        // RFC 5510 §8.1: α⁸ = α⁴ + α³ + α² + 1.
        assert_eq!(mul(0x80, 2), REDUCTION);
        let mut seen = [false; 256];
        let mut power = 1;
        for _ in 0..255 {
            assert!(!std::mem::replace(&mut seen[usize::from(power)], true), "{power} comes twice");
            power = times_x(power);
        }
        assert_eq!(power, 1);
        assert!((1..=255).all(|a| mul(a, inverse(a)) == 1), "products with inverses");
        assert_eq!(inverse(0), 0);
    }

    proptest! {
        #[test]
        fn products_commute_associate_and_distribute(a: u8, b: u8, c: u8) {
            prop_assert_eq!(mul(a, b), mul(b, a));
            prop_assert_eq!(mul(a, mul(b, c)), mul(mul(a, b), c));
            prop_assert_eq!(mul(a, b ^ c), mul(a, b) ^ mul(a, c));
        }

        /// Lengths around the vectors' and offsets of every alignment.
        #[test]
        fn every_kernel_does_what_the_definition_says(
            x in proptest::collection::vec(any::<u8>(), 0..200),
            y in proptest::collection::vec(any::<u8>(), 200),
            offset in 0usize..32,
            c: u8,
        ) {
            let x = &x[offset.min(x.len())..];
            let mut expected = y.clone();
            expected.iter_mut().zip(x).for_each(|(y, x)| *y ^= mul(c, *x));
            let mut whole = y.clone();
            mul_add(&mut whole, c, x);
            prop_assert_eq!(&whole, &expected);
            for (name, kernel) in kernels() {
                let mut result = y.clone();
                kernel(&mut result[..x.len()], c, x);
                prop_assert_eq!(&result, &expected, "{}", name);
            }
        }

        #[test]
        fn scaling_multiplies_each_byte(x in proptest::collection::vec(any::<u8>(), 0..100), c: u8) {
            let mut scaled = x.clone();
            scale(&mut scaled, c);
            prop_assert_eq!(scaled, x.iter().map(|x| mul(c, *x)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_pairs_of_bytes_are_multiplied_right_by_every_kernel() {
        let x: Vec<u8> = (0..=255).collect();
        for (name, kernel) in kernels() {
            for c in 0..=255 {
                let mut y = vec![0; 256];
                kernel(&mut y, c, &x);
                assert!(y.iter().zip(&x).all(|(y, x)| *y == mul(c, *x)), "{name}, {c}");
            }
        }
    }
}
