//! Coding coefficients out of a repair key: TinyMT32 (RFC 8682) as RFC 8681 §3.6 uses it.

/// The parameter set of RFC 8682 §2.1.
const MAT1: u32 = 0x8f70_11ee;
const MAT2: u32 = 0xfc78_ff1f;
const TMAT: u32 = 0x3793_fdff;
/// The period is 2¹²⁷ − 1: one bit of the state does not count.
const STATE_BITS: u32 = 0x7fff_ffff;
/// Words that are thrown away first, and of the state that the seed is spread over.
const PRE_LOOP: usize = 8;

/// The generator TinyMT32 of Saito and Matsumoto: a small Mersenne Twister whose sequence RFC 8682 fixes.
#[derive(Debug, Clone)]
struct TinyMt32([u32; 4]);

impl TinyMt32 {
    fn new(seed: u32) -> Self {
        let mut state = [seed, MAT1, MAT2, TMAT];
        for i in 1..PRE_LOOP {
            let before = state[(i - 1) % 4];
            let mixed = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
            state[i % 4] ^= mixed;
        }
        let mut generator = Self(state);
        (0..PRE_LOOP).for_each(|_| generator.step());
        generator
    }

    fn step(&mut self) {
        let [a, b, c, d] = self.0;
        let x = (a & STATE_BITS) ^ b ^ c;
        let x = x ^ (x << 1);
        let y = d ^ (d >> 1) ^ x;
        let odd = (y & 1).wrapping_neg();
        self.0 = [b, c ^ (odd & MAT1), x ^ (y << 10) ^ (odd & MAT2), y];
    }

    fn next(&mut self) -> u32 {
        self.step();
        let [a, _, c, d] = self.0;
        let sum = a.wrapping_add(c >> 8);
        let odd = (sum & 1).wrapping_neg();
        d ^ sum ^ (odd & TMAT)
    }
}

/// The coefficients of a repair symbol, one for each symbol of its window in the order of their numbers:
/// those of RFC 8681 §3.6 for GF(2⁸) and the density threshold 15, that is none is 0.
pub(crate) fn coefficients(repair_key: u16) -> impl Iterator<Item = u8> {
    let mut generator = TinyMt32::new(u32::from(repair_key));
    std::iter::repeat_with(move || {
        loop {
            // RFC 8681 §3.5: the lower eight bits.
            let coefficient = generator.next() as u8;
            if coefficient != 0 {
                return coefficient;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_numbers_of_rfc_8682() {
        // RFC 8682 §2.3, seed 1.
        let expected: [u32; 15] = [
            2545341989, 981918433, 3715302833, 2387538352, 3591001365, 3820442102, 2114400566, 2196103051,
            2783359912, 764534509, 643179475, 1822416315, 881558334, 4207026366, 3690273640,
        ];
        let mut generator = TinyMt32::new(1);
        assert_eq!(expected.map(|_| generator.next()), expected);
    }

    #[test]
    fn coefficients_are_the_bytes_of_rfc_8681_without_zeros() {
        // RFC 8681 appendix A, rand256 with seed 1; there is no 0 among the first ones.
        let expected = [37, 225, 177, 176, 21, 246, 54, 139, 168, 237, 211, 187, 62, 190, 104];
        assert_eq!(coefficients(1).take(15).collect::<Vec<_>>(), expected);
        assert!(coefficients(0).take(100_000).all(|coefficient| coefficient != 0));
    }
}
