//! Random configurations, applications and channels.

use std::num::NonZeroU32;
use std::time::Duration;

use bentpipe_tcp::congestion::{Algorithm, Components, XcpSender};
use bentpipe_tcp::{Config, MetricsCache, Recovery, RtoLimits, SynSchedule};
use proptest::prelude::*;

use crate::pair::channel::Conditions;
use crate::pair::connection::{Application, Opening, Pair};

/// Everything that a run is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) opening: Opening,
    pub(crate) configs: [Config; 2],
    pub(crate) applications: [Application; 2],
    pub(crate) conditions: [Conditions; 2],
    pub(crate) initials: [u32; 2],
}

impl Plan {
    pub(crate) fn pair(&self) -> Pair {
        let Self { opening, configs, applications, conditions, initials } = self.clone();
        Pair::new(opening, configs, applications, conditions, initials)
    }
}

/// So many cases, or as many as PROPTEST_CASES says.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(cases),
    }
}

/// A plan over channels of the kind that `conditions` makes.
pub(crate) fn plan<S: Strategy<Value = Conditions>>(
    conditions: impl Fn() -> S,
) -> impl Strategy<Value = Plan> {
    let opening = prop_oneof![4 => Just(Opening::Call), 1 => Just(Opening::Both)];
    let applications = (application(), application()).prop_map(|(mut first, mut second)| {
        // No more than some hundred steps.
        first.read_chunk = first.read_chunk.max(second.bytes / 400);
        second.read_chunk = second.read_chunk.max(first.bytes / 400);
        // One of the two may wait for the other, not both.
        second.finishes_last &= !first.finishes_last;
        [first, second]
    });
    let both = (conditions(), conditions()).prop_map(|(there, back)| [there, back]);
    (opening, [config(), config()], applications, both, [initial(), initial()]).prop_map(
        |(opening, configs, applications, conditions, initials)| Plan {
            opening,
            configs,
            applications,
            conditions,
            initials,
        },
    )
}

/// Loses, delays, reorders and duplicates, but not for ever.
pub(crate) fn rough() -> impl Strategy<Value = Conditions> {
    (
        (1u64..700, prop_oneof![Just(0u64), 1u64..300], any::<bool>()),
        (prop_oneof![Just(0u64), 1u64..400], 0u64..40, prop::collection::vec(0u64..60, 0..6)),
        (prop_oneof![Just(0u64), 1u64..200], any::<u64>()),
    )
        .prop_map(
            |((delay, jitter, fifo), (loss_permille, losses, lost), (duplicate_permille, seed))| Conditions {
                delay: Duration::from_millis(delay),
                jitter: Duration::from_millis(jitter),
                fifo,
                loss_permille,
                losses,
                lost,
                duplicate_permille,
                seed,
            },
        )
}

/// Everything arrives, in order, in less than half the shortest timeout.
pub(crate) fn clean() -> impl Strategy<Value = Conditions> {
    (1u64..400).prop_map(|delay| Conditions::clean(Duration::from_millis(delay)))
}

/// Near the wrap more often than elsewhere.
pub(crate) fn initial() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0u32..100_000).prop_map(|n| u32::MAX - n), Just(u32::MAX), Just(0)]
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::NewReno),
        Just(Algorithm::Cubic),
        Just(Algorithm::Bbr),
        Just(Algorithm::Bbr3),
        Just(Algorithm::Xcp(XcpSender::Xcp)),
        Just(Algorithm::Xcp(XcpSender::PXcp)),
        Just(Algorithm::Explicit { weight: NonZeroU32::MIN }),
        (any::<[bool; 5]>()).prop_map(|[rho, pacing, hoe, recovery_growth, queue]| {
            Algorithm::Hybla(Components { rho, pacing, hoe, recovery_growth, queue })
        }),
    ]
}

fn buffer() -> impl Strategy<Value = u64> {
    prop_oneof![1500u64..10_000, 10_000u64..200_000, Just(1 << 20), Just(16 << 20)]
}

pub(crate) fn config() -> impl Strategy<Value = Config> {
    let first = || prop::option::of(1500u64..100_000);
    let sizes = (88u16..1500, 1u32..20, (buffer(), first()), (buffer(), first()));
    let delayed_ack = prop_oneof![Just(None), (1u64..200).prop_map(|n| Some(Duration::from_millis(n)))];
    let choices =
        (0..Recovery::ALL.len(), algorithm(), prop::option::of(1u32..4), 0..3usize, delayed_ack, 1u32..9);
    let recalled =
        (prop::option::of(1u64..1 << 20), prop::option::of((0u64..100_000).prop_map(Duration::from_millis)));
    (sizes, any::<[bool; 16]>(), choices, recalled).prop_map(
        |(
            (mss, initial_window, (send_buffer, send_first), (receive_buffer, receive_first)),
            switches,
            choices,
            recalled,
        )| {
            let [
                window_scaling,
                timestamps,
                sack,
                limited_transmit,
                nagle,
                restart_after_idle,
                proportional_rate_reduction,
                lost_retransmissions,
                tail_loss_probe,
                forward_rto,
                undo,
                duplicate_sack,
                hystart,
                linux_cubic,
                segmentation_offload,
                fq_pacing,
            ] = switches;
            let (recovery, congestion, byte_counting_limit, timers, delayed_ack, ack_every) = choices;
            let patient = SynSchedule { waits: None, ..SynSchedule::RFC6298 };
            Config {
                mss,
                initial_window,
                send_buffer,
                send_autotuning: send_first.map(|first| first.min(send_buffer)),
                receive_buffer,
                receive_autotuning: receive_first.map(|first| first.min(receive_buffer)),
                ssthresh: recalled.0,
                srtt: recalled.1,
                metrics_cache: MetricsCache::Off,
                window_scaling,
                timestamps,
                sack,
                delayed_ack,
                ack_every,
                limited_transmit,
                proportional_rate_reduction,
                lost_retransmissions,
                tail_loss_probe,
                forward_rto,
                undo,
                duplicate_sack,
                hystart,
                linux_cubic,
                segmentation_offload,
                fq_pacing,
                nagle,
                restart_after_idle,
                // Not a draw of its own, with which the stored regressions would be other cases.
                each_timeout_reduces: linux_cubic,
                byte_counting_limit,
                rto: [RtoLimits::RFC6298, RtoLimits::LINUX, RtoLimits::LINUX_250_HZ][timers],
                retries: None,
                user_timeout: None,
                syn: patient,
                syn_ack: patient,
                recovery: Recovery::ALL[recovery],
                congestion,
            }
        },
    )
}

fn application() -> impl Strategy<Value = Application> {
    let chunk = || prop_oneof![Just(u64::MAX), 1u64..5_000, 5_000u64..50_000];
    let pause = || prop_oneof![3 => Just(0u64), 1 => 1u64..100, 1 => 100u64..3_000];
    let bytes = prop_oneof![Just(0u64), 1u64..3_000, 3_000u64..150_000];
    (bytes, chunk(), pause(), chunk(), pause(), any::<bool>()).prop_map(
        |(bytes, write_chunk, write_pause, read_chunk, read_pause, finishes_last)| Application {
            bytes,
            // No more than some hundred steps.
            write_chunk: write_chunk.max(bytes / 200 + 1),
            write_pause: Duration::from_millis(write_pause),
            read_chunk,
            read_pause: Duration::from_millis(read_pause),
            finishes_last,
            aborts_at: None,
        },
    )
}
