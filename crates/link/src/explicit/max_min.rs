//! Weighted max–min fairness: no claim can get more without taking from one that has less for its weight.

/// The claim of one connection to a part of the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Claim {
    /// Its share in proportion to others.
    pub(super) weight: u32,
    /// The most that it uses; infinite if it can use any rate.
    pub(super) most: f64,
}

impl Claim {
    /// Whether it can use any rate.
    pub(super) fn is_greedy(&self) -> bool {
        self.most.is_infinite()
    }

    /// The rate for one unit of weight that satisfies it.
    fn saturation(&self) -> f64 {
        self.most / f64::from(self.weight)
    }
}

/// The rate for one unit of weight at which the claims take all of `budget`, or would if they claimed that
/// much. Claims below it leave the rest to the others. Sorts the claims.
pub(super) fn level(budget: f64, claims: &mut [Claim]) -> f64 {
    claims.sort_unstable_by(|a, b| a.saturation().total_cmp(&b.saturation()));
    let mut left = budget;
    let mut weight: u64 = claims.iter().map(|claim| u64::from(claim.weight)).sum();
    for claim in claims.iter() {
        let level = left / weight as f64;
        if claim.saturation() >= level {
            return level;
        }
        left -= claim.most;
        weight -= u64::from(claim.weight);
    }
    // All are satisfied. The rest is there for any of them that wants more, and for the next connection.
    claims.last().map_or(budget, |last| last.saturation() + left.max(0.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(budget: f64, claims: &[(u32, f64)]) -> Vec<f64> {
        let claims = claims.iter().map(|&(weight, most)| Claim { weight, most });
        let level = level(budget, &mut claims.clone().collect::<Vec<_>>());
        claims.map(|claim| (level * f64::from(claim.weight)).min(claim.most)).collect()
    }

    const ALL: f64 = f64::INFINITY;

    #[test]
    fn the_others_share_the_rate_that_one_does_not_use() {
        assert_eq!(shares(12.0, &[(1, ALL), (1, ALL), (1, 2.0)]), [5.0, 5.0, 2.0]);
        assert_eq!(shares(12.0, &[(1, 1.0), (2, ALL), (1, 3.0)]), [1.0, 8.0, 3.0]);
    }

    #[test]
    fn weights_share_in_proportion() {
        assert_eq!(shares(12.0, &[(1, ALL), (3, ALL)]), [3.0, 9.0]);
    }

    #[test]
    fn a_lone_claim_gets_everything_and_without_claims_the_next_one_does() {
        assert_eq!(shares(12.0, &[(5, ALL)]), [12.0]);
        assert_eq!(level(12.0, &mut []), 12.0);
        assert_eq!(shares(12.0, &[(1, 2.0), (1, 3.0)]), [2.0, 3.0]);
    }

    proptest! {
        #[test]
        fn nothing_is_given_twice_and_no_wanted_rate_is_left(
            budget in 1.0..1e9f64,
            claims in prop::collection::vec((1u32..100, prop_oneof![Just(ALL), 0.0..1e9f64]), 1..50),
        ) {
            let shares = shares(budget, &claims);
            let sum: f64 = shares.iter().sum();
            prop_assert!(sum <= budget * (1.0 + 1e-9), "{sum} of {budget}");
            let all_satisfied = claims.iter().zip(&shares).all(|(claim, share)| *share >= claim.1);
            prop_assert!(all_satisfied || sum >= budget * (1.0 - 1e-9), "{sum} of {budget}");
            for (a, of_a) in claims.iter().zip(&shares) {
                for (b, of_b) in claims.iter().zip(&shares) {
                    let (for_a, for_b) = (of_a / f64::from(a.0), of_b / f64::from(b.0));
                    prop_assert!(*of_a >= a.1 || for_a >= for_b * (1.0 - 1e-9), "an unsatisfied one has less");
                }
            }
        }
    }
}
