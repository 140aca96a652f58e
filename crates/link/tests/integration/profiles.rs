//! Links made of a seed.

use std::time::Duration;

use bentpipe_link::{LinkTrace, Profile};

/// The FNV-1a hash of a text.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn the_links_of_a_seed_never_change() {
    let expected = [
        (Profile::LeoHandovers, [0xb325_3e01_44f3_288e, 0x623d_ddde_f4ad_2b4c]),
        (Profile::RainFront, [0x491a_18b4_2460_e4db, 0x602e_c658_6c03_056a]),
        (Profile::Aircraft, [0xd400_ecc1_c05b_035c, 0xd400_ecc1_c05b_035c]),
        (Profile::Ship, [0x9aee_c21a_9c91_9c9b, 0x9aee_c21a_9c91_9c9b]),
    ];
    let found = expected.map(|(profile, _)| {
        let link = profile.generate(1, Duration::from_secs(1200));
        (profile, [link.forward, link.reverse].map(|direction| hash(&direction.trace.to_csv())))
    });
    assert_eq!(found, expected, "{found:#x?}");
}

#[test]
fn a_generated_link_is_the_same_when_its_trace_is_written_and_read() {
    for profile in Profile::ALL.into_iter().filter(|profile| profile.is_generated()) {
        for seed in 0..5 {
            let link = profile.generate(seed, Duration::from_secs(900));
            for trace in [link.forward.trace, link.reverse.trace] {
                assert_eq!(LinkTrace::from_csv(&trace.to_csv()), Ok(trace), "{profile}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_generated_link_lasts_at_least_as_long_as_asked_for_and_then_begins_anew() {
    for profile in Profile::ALL.into_iter().filter(|profile| profile.is_generated()) {
        for seconds in [1, 100, 1_000_000_000] {
            let csv = profile.generate(1, Duration::from_secs(seconds)).forward.trace.to_csv();
            let (period, _) = csv.trim_end().rsplit('\n').next().unwrap().split_once(",repeat").unwrap();
            let period: f64 = period.parse().unwrap();
            let asked_for = seconds.min(86_400) as f64;
            assert!((asked_for..asked_for + 16.0).contains(&period), "{profile}: {period} s for {seconds} s");
        }
    }
}
