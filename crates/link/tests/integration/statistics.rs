//! Long-run statistics over 10⁶ packets: each must lie within three standard errors of what the model says.
//!
//! The seeds are fixed, so a result never changes between runs.

use std::time::Duration;

use bentpipe_link::{
    Arrivals, Direction, DirectionConfig, Fate, GilbertElliott, ImpairmentCounters, Impairments, Link,
    LinkConfig,
};
use bentpipe_units::{Probability, Time};

const PACKETS: usize = 1_000_000;
const SEEDS: [u64; 5] = [1, 2, 3, 42, 0xdead_beef];

fn probability(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

fn channel(p: f64, r: f64, in_good: f64, in_bad: f64) -> GilbertElliott {
    GilbertElliott {
        good_to_bad: probability(p),
        bad_to_good: probability(r),
        loss_in_good: probability(in_good),
        loss_in_bad: probability(in_bad),
        slot: None,
    }
}

/// Which of [`PACKETS`] packets a direction loses.
fn losses(config: &DirectionConfig, seed: u64) -> Vec<bool> {
    let mut direction = Direction::new(config, seed);
    (0..PACKETS).map(|_| matches!(direction.offer(Time::ZERO, 1500), Fate::Drop(_))).collect()
}

fn burst_losses(model: GilbertElliott, seed: u64) -> Vec<bool> {
    losses(&DirectionConfig { gilbert_elliott: Some(model), ..Default::default() }, seed)
}

fn lost(losses: &[bool]) -> f64 {
    losses.iter().filter(|&&lost| lost).count() as f64
}

/// Bursts that begin in `losses`: packets lost whose predecessor was not.
fn bursts(losses: &[bool]) -> f64 {
    losses.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64
}

fn assert_within_three_standard_errors(what: &str, observed: f64, expected: f64, standard_error: f64) {
    let deviation = (observed - expected) / standard_error;
    println!("{what}: observed {observed:.6}, expected {expected:.6}, {deviation:+.2} standard errors");
    assert!(deviation.abs() <= 3.0, "{what}: {observed} is {deviation:+.2} standard errors from {expected}");
}

#[test]
fn the_packet_error_rate_is_kept() {
    for p in [1e-4, 0.01, 0.5] {
        for seed in SEEDS {
            let config = DirectionConfig { per: probability(p), ..Default::default() };
            let observed = lost(&losses(&config, seed)) / PACKETS as f64;
            let standard_error = (p * (1.0 - p) / PACKETS as f64).sqrt();
            assert_within_three_standard_errors(
                &format!("PER {p}, seed {seed}"),
                observed,
                p,
                standard_error,
            );
        }
    }
}

#[test]
fn lone_errors_are_independent_of_each_other() {
    // Of independent errors, p² of all pairs of neighbours are lost together.
    let p: f64 = 0.1;
    for seed in SEEDS {
        let config = DirectionConfig { per: probability(p), ..Default::default() };
        let losses = losses(&config, seed);
        let pairs = losses.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64 / PACKETS as f64;
        // Neighbouring pairs share a packet: their covariance is p³ − p⁴.
        let variance = p.powi(2) * (1.0 - p.powi(2)) + 2.0 * (p.powi(3) - p.powi(4));
        let standard_error = (variance / PACKETS as f64).sqrt();
        assert_within_three_standard_errors(&format!("pairs, seed {seed}"), pairs, p * p, standard_error);
    }
}

#[test]
fn a_gilbert_channel_keeps_its_mean_loss_and_burst_length() {
    for (p, r) in [(0.01, 0.25), (0.001, 0.05), (0.3, 0.9)] {
        let model = channel(p, r, 0.0, 1.0);
        for seed in SEEDS {
            let losses = burst_losses(model, seed);
            check_mean_loss(&model, &losses, seed);
            // Bursts are independent and geometric: mean 1/r, variance (1 − r)/r².
            let bursts = bursts(&losses);
            let standard_error = ((1.0 - r) / (r * r) / bursts).sqrt();
            let what = format!("burst length of {p}/{r}, seed {seed}");
            assert_within_three_standard_errors(&what, lost(&losses) / bursts, 1.0 / r, standard_error);
        }
    }
}

#[test]
fn a_gilbert_elliott_channel_keeps_its_mean_loss_and_burst_length() {
    for model in [channel(0.01, 0.1, 0.001, 0.5), channel(0.05, 0.2, 0.0, 0.8), channel(0.2, 0.6, 0.05, 0.3)]
    {
        for seed in SEEDS {
            let losses = burst_losses(model, seed);
            check_mean_loss(&model, &losses, seed);
            let what = format!("burst length, seed {seed}");
            let observed = lost(&losses) / bursts(&losses);
            let standard_error = standard_error_of_burst_length(&losses);
            assert_within_three_standard_errors(&what, observed, model.mean_burst(), standard_error);
        }
    }
}

/// Losses of a Gilbert–Elliott channel are correlated: at lag k their covariance is π_g π_b (l_b − l_g)² λ^k,
/// with λ = 1 − p − r. Summed over all lags, it is added to the variance of independent losses.
fn check_mean_loss(model: &GilbertElliott, losses: &[bool], seed: u64) {
    let expected = model.stationary_loss().get();
    let bad = model.stationary_bad().get();
    let contrast = model.loss_in_bad.get() - model.loss_in_good.get();
    let lambda = 1.0 - model.good_to_bad.get() - model.bad_to_good.get();
    let covariances = bad * (1.0 - bad) * contrast * contrast * lambda / (1.0 - lambda);
    let variance = expected * (1.0 - expected) + 2.0 * covariances;
    let standard_error = (variance / PACKETS as f64).sqrt();
    let observed = lost(losses) / PACKETS as f64;
    assert_within_three_standard_errors(
        &format!("mean loss, seed {seed}"),
        observed,
        expected,
        standard_error,
    );
}

/// Where states are hidden, neither losses nor bursts are independent. Batches much longer than the
/// correlation are: the ratio of two sums has the standard error of `losses − ratio·bursts` over the batches
/// (the delta method).
fn standard_error_of_burst_length(losses: &[bool]) -> f64 {
    const BATCHES: usize = 500;
    let ratio = lost(losses) / bursts(losses);
    let residuals = losses.chunks(PACKETS / BATCHES).map(|batch| lost(batch) - ratio * bursts(batch));
    let sum_of_squares: f64 = residuals.map(|residual| residual * residual).sum();
    sum_of_squares.sqrt() / bursts(losses)
}

#[test]
fn forward_and_reverse_lose_independently() {
    let p = 0.1;
    let config = DirectionConfig { per: probability(p), ..Default::default() };
    let config = LinkConfig { forward: config.clone(), reverse: config };
    for seed in SEEDS {
        let mut link = Link::new(&config, seed);
        let is_lost = |direction: &mut Direction| matches!(direction.offer(Time::ZERO, 40), Fate::Drop(_));
        let both: Vec<_> =
            (0..PACKETS).map(|_| is_lost(&mut link.forward) & is_lost(&mut link.reverse)).collect();
        let standard_error = (p * p * (1.0 - p * p) / PACKETS as f64).sqrt();
        let observed = lost(&both) / PACKETS as f64;
        assert_within_three_standard_errors(&format!("both, seed {seed}"), observed, p * p, standard_error);
    }
}

#[test]
fn the_two_kinds_of_error_hit_independently() {
    // A packet survives both with the product of the probabilities.
    let model = channel(0.1, 0.4, 0.0, 1.0);
    for seed in SEEDS {
        let config =
            DirectionConfig { per: probability(0.1), gilbert_elliott: Some(model), ..Default::default() };
        let mut direction = Direction::new(&config, seed);
        let burst = burst_losses(model, seed);
        let survived = burst.iter().filter(|&&lost| !lost).count() as f64;
        for _ in 0..PACKETS {
            direction.offer(Time::ZERO, 1500);
        }
        let hit = direction.counters().dropped.packet_error as f64;
        let standard_error = (0.1 * 0.9 / survived).sqrt();
        assert_within_three_standard_errors(
            &format!("PER of the rest, seed {seed}"),
            hit / survived,
            0.1,
            standard_error,
        );
    }
}

fn impaired(impairments: &Impairments, seed: u64) -> (Vec<Arrivals>, ImpairmentCounters) {
    let mut direction = Direction::new(&DirectionConfig::default(), seed);
    direction.impair(impairments, seed);
    let arrivals = (0..PACKETS).map(|_| direction.transmit(Time::ZERO, 1500, 1500).unwrap()).collect();
    (arrivals, *direction.impairment_counters())
}

#[test]
fn the_rates_of_impairments_are_kept() {
    let impairments = Impairments {
        reorder: probability(0.02),
        reorder_by: Duration::from_millis(1),
        duplicate: probability(0.05),
        corrupt: probability(0.001),
    };
    for seed in SEEDS {
        let (_, counters) = impaired(&impairments, seed);
        let ImpairmentCounters { held_back, duplicated, corrupted } = counters;
        // Copies may be held back and corrupted as well; how many there are is known by then.
        let copies = (PACKETS as u64 + duplicated) as f64;
        for (what, observed, p, trials) in [
            ("held back", held_back, 0.02, copies),
            ("duplicated", duplicated, 0.05, PACKETS as f64),
            ("corrupted", corrupted, 0.001, copies),
        ] {
            let standard_error = (p * (1.0 - p) / trials).sqrt();
            let observed = observed as f64 / trials;
            assert_within_three_standard_errors(&format!("{what}, seed {seed}"), observed, p, standard_error);
        }
    }
}

#[test]
fn a_flipped_bit_may_be_any_of_the_packet() {
    for seed in SEEDS {
        let (arrivals, _) = impaired(&Impairments { corrupt: probability(1.0), ..Default::default() }, seed);
        let bits = arrivals.iter().filter_map(|arrivals| arrivals.packet.flipped_bit);
        let (mut sum, mut seen) = (0, vec![false; 12_000]);
        for bit in bits {
            sum += bit;
            seen[bit] = true;
        }
        // Uniform over n values: mean (n − 1)/2, variance (n² − 1)/12.
        let n: f64 = 12_000.0;
        let standard_error = ((n * n - 1.0) / 12.0 / PACKETS as f64).sqrt();
        let mean = sum as f64 / PACKETS as f64;
        assert_within_three_standard_errors(
            &format!("bit, seed {seed}"),
            mean,
            (n - 1.0) / 2.0,
            standard_error,
        );
        assert!(seen.iter().all(|&seen| seen));
    }
}

#[test]
fn one_effects_rate_does_not_change_which_packets_another_hits() {
    let corrupt = Impairments { corrupt: probability(0.01), ..Default::default() };
    let all = Impairments { duplicate: probability(0.3), reorder: probability(0.2), ..corrupt };
    let flips =
        |impairments| impaired(impairments, 42).0.into_iter().map(|arrivals| arrivals.packet.flipped_bit);
    assert!(flips(&corrupt).eq(flips(&all)));
}
