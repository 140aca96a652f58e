//! `[tcp.NAME]`: TCP's parameters under a name, begun from the RFCs', Linux' or those of another name.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use bentpipe_config::{Name, Off, Or, Plain, Problem, SpanFrom, Whole, Written, unknown};
use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, MetricsCache, Recovery, RtoLimits, SynSchedule};
use bentpipe_units::{ByteCount, Probability};
use serde::Deserialize;

use super::{Endless, overlay};

/// The parameters that need no section.
const BUILT_IN: [&str; 3] = ["rfc", "linux", "linux-stock"];
/// The longest chain of bases.
const MAX_CHAIN: usize = 16;
/// The part of a receiver's memory that is for payload (`tcp_adv_win_scale` of 1).
const DEFAULT_PAYLOAD: f64 = 0.5;
const U32_MAX: u64 = u32::MAX as u64;

/// Timers below a millisecond would fill virtual time with their expiries; no TCP has such.
type Timer = SpanFrom<1_000_000>;
/// A span, or none.
type SpanOrOff = Or<Off, SpanFrom<0>>;

/// One `[tcp.NAME]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tcp {
    base: Option<String>,
    congestion: Option<Written<Algorithm>>,
    hybla: Option<HyblaKeys>,
    /// As in the daemon's rules.
    weight: Option<Whole<u32, 1, 100>>,
    recovery: Option<Written<Recovery>>,
    mss: Option<Whole<u16, 88, 65_535>>,
    initial_window: Option<Whole<u32, 1, 10_000>>,
    send_buffer: Option<SendBuffer>,
    receive_buffer: Option<ReceiveBuffer>,
    ssthresh: Option<Or<Off, Written<ByteCount>>>,
    srtt: Option<SpanOrOff>,
    metrics_cache: Option<Written<MetricsCache>>,
    window_scaling: Option<bool>,
    timestamps: Option<bool>,
    sack: Option<bool>,
    delayed_ack: Option<SpanOrOff>,
    ack_every: Option<Whole<u32, 1, 255>>,
    limited_transmit: Option<bool>,
    proportional_rate_reduction: Option<bool>,
    lost_retransmissions: Option<bool>,
    tail_loss_probe: Option<bool>,
    forward_rto: Option<bool>,
    undo: Option<bool>,
    duplicate_sack: Option<bool>,
    hystart: Option<bool>,
    linux_cubic: Option<bool>,
    segmentation_offload: Option<bool>,
    fq_pacing: Option<bool>,
    nagle: Option<bool>,
    restart_after_idle: Option<bool>,
    each_timeout_reduces: Option<bool>,
    byte_counting_limit: Option<Or<Off, Whole<u32, 1, U32_MAX>>>,
    rto: Option<RtoKeys>,
    retries: Option<Or<Endless, Whole<u32, 0, U32_MAX>>>,
    user_timeout: Option<SpanOrOff>,
    syn: Option<SynKey>,
    syn_ack: Option<SynKey>,
}

/// A fixed size, or the first and the largest one.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum SendBuffer {
    Text(Written<ByteCount>),
    Number(Written<ByteCount>),
    Table(SendAuto),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendAuto {
    auto: [Written<ByteCount>; 2],
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum ReceiveBuffer {
    Text(Written<ByteCount>),
    Number(Written<ByteCount>),
    Table(ReceiveAuto),
}

/// Sizes of memory, as `tcp_rmem` has them, of which a part is for payload.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiveAuto {
    auto: [Written<ByteCount>; 2],
    payload: Option<Written<Probability>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum HyblaKeys {
    Text(KnownComponents),
    Table(OwnComponents),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KnownComponents {
    All,
    Published,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnComponents {
    rho: Option<bool>,
    pacing: Option<bool>,
    hoe: Option<bool>,
    recovery_growth: Option<bool>,
    queue: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct RtoKeys {
    initial: Option<Timer>,
    min: Option<Timer>,
    max: Option<Timer>,
    granularity: Option<SpanFrom<0>>,
    tick: Option<SpanFrom<0>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum SynKey {
    Text(KnownSchedule),
    Table(OwnSchedule),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KnownSchedule {
    Linux,
    Rfc6298,
    Opnet,
    #[serde(rename = "windows-2003")]
    Windows2003,
    Ns,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnSchedule {
    first: Option<Timer>,
    linear: Option<Whole<u32, 0, U32_MAX>>,
    max: Option<Timer>,
    waits: Option<Or<Endless, Whole<u32, 1, U32_MAX>>>,
}

/// The parameters by name, the built-in ones among them.
pub(super) struct Named(BTreeMap<String, Config>);

impl Named {
    /// Checks each of the sections.
    pub(super) fn read(sections: &BTreeMap<Name, Tcp>) -> Result<Self, Problem> {
        let mut configs =
            BTreeMap::from(BUILT_IN.map(|name| (name.to_owned(), Draft::built_in(name).config)));
        for name in sections.keys() {
            if BUILT_IN.contains(&&**name) {
                let message = "cannot be the name of TCP parameters: rfc, linux and linux-stock are built in, write another";
                return Err(Problem::of(name, format!("\"{}\" {message}", &**name)));
            }
            configs.insert(name.to_string(), resolve(name, sections)?);
        }
        Ok(Self(configs))
    }

    /// The parameters that the value of `key` names, if there is one.
    pub(super) fn get(&self, key: &str, name: &Option<String>) -> Result<Option<Config>, Problem> {
        let Some(name) = name else { return Ok(None) };
        let config = self.0.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            Problem::of(key, format!("{}; name a section [tcp.NAME]", unknown(name, &known)))
        })?;
        Ok(Some(config))
    }
}

/// The configuration of `name`: its chain of bases, the farthest first.
fn resolve(name: &Name, sections: &BTreeMap<Name, Tcp>) -> Result<Config, Problem> {
    let mut chain: Vec<&str> = vec![name];
    let origin = loop {
        let last = chain[chain.len() - 1];
        let Some(base) = sections[last].base.as_deref() else { break "rfc" };
        if BUILT_IN.contains(&base) {
            break base;
        }
        if chain.contains(&base) {
            let message = format!("{} → {base} goes round in circles", chain.join(" → "));
            return Err(Problem::of("base", message).inside(&**name));
        }
        if !sections.contains_key(base) {
            let known: Vec<&str> = BUILT_IN.into_iter().chain(sections.keys().map(|name| &**name)).collect();
            return Err(Problem::of("base", unknown(base, &known)).inside(last));
        }
        chain.push(base);
        if chain.len() > MAX_CHAIN {
            let message = format!("more than {MAX_CHAIN} bases, one upon the other, are too many");
            return Err(Problem::of("base", message).inside(last));
        }
    };
    let mut draft = Draft::built_in(origin);
    chain.iter().rev().for_each(|name| sections[*name].apply(&mut draft));
    let impossible = |error: bentpipe_tcp::ConfigError| {
        Problem::of(error.parameter, format!("{} is not possible: {}", error.found, error.accepted))
            .inside(&**name)
    };
    draft.config.check().map_err(impossible)?;
    Ok(draft.config)
}

/// A configuration in the making: what belongs to one algorithm is kept where another is chosen for a while.
struct Draft {
    config: Config,
    hybla: Components,
    weight: NonZeroU32,
}

impl Draft {
    fn built_in(name: &str) -> Self {
        let config = match name {
            "linux" => Config::linux(),
            "linux-stock" => Config::linux_stock(),
            _ => Config::default(),
        };
        Self { config, hybla: Components::ALL, weight: NonZeroU32::MIN }
    }
}

impl Tcp {
    /// Writes the values of the section over the draft.
    fn apply(&self, draft: &mut Draft) {
        let config = &mut draft.config;
        overlay!(self => config; mss initial_window srtt metrics_cache window_scaling timestamps sack
            delayed_ack ack_every limited_transmit proportional_rate_reduction lost_retransmissions
            tail_loss_probe forward_rto undo duplicate_sack hystart linux_cubic segmentation_offload fq_pacing
            nagle restart_after_idle each_timeout_reduces byte_counting_limit retries user_timeout recovery congestion);
        if let Some(buffer) = self.send_buffer {
            (config.send_autotuning, config.send_buffer) = buffer.sizes();
        }
        if let Some(buffer) = self.receive_buffer {
            (config.receive_autotuning, config.receive_buffer) = buffer.sizes();
        }
        if let Some(ssthresh) = self.ssthresh {
            config.ssthresh = ssthresh.get().map(ByteCount::get);
        }
        if let Some(rto) = self.rto {
            rto.apply(&mut config.rto);
        }
        if let Some(syn) = self.syn {
            config.syn = syn.over(config.syn, SynSchedule::LINUX);
        }
        if let Some(syn_ack) = self.syn_ack {
            config.syn_ack = syn_ack.over(config.syn_ack, SynSchedule::LINUX_SYN_ACK);
        }
        if let Some(hybla) = self.hybla {
            draft.hybla = hybla.over(draft.hybla);
        }
        draft.weight = self.weight.and_then(|weight| NonZeroU32::new(weight.get())).unwrap_or(draft.weight);
        match &mut config.congestion {
            Algorithm::Hybla(components) => *components = draft.hybla,
            Algorithm::Explicit { weight } => *weight = draft.weight,
            Algorithm::NewReno
            | Algorithm::Cubic
            | Algorithm::Bbr
            | Algorithm::Bbr3
            | Algorithm::Xcp(_)
            | Algorithm::Custom(_) => {}
        }
    }
}

impl SendBuffer {
    /// The first size, where it grows, and the largest one; bytes of payload.
    fn sizes(self) -> (Option<u64>, u64) {
        match self {
            Self::Text(bytes) | Self::Number(bytes) => (None, bytes.get().get()),
            Self::Table(SendAuto { auto: [first, most] }) => (Some(first.get().get()), most.get().get()),
        }
    }
}

impl ReceiveBuffer {
    /// As of [`SendBuffer`].
    fn sizes(self) -> (Option<u64>, u64) {
        match self {
            Self::Text(bytes) | Self::Number(bytes) => (None, bytes.get().get()),
            Self::Table(ReceiveAuto { auto, payload }) => {
                let part = payload.map_or(DEFAULT_PAYLOAD, |part| part.get().get());
                let [first, most] = auto.map(|memory| (memory.get().get() as f64 * part) as u64);
                (Some(first), most)
            }
        }
    }
}

impl HyblaKeys {
    fn over(self, mut base: Components) -> Components {
        match self {
            Self::Text(KnownComponents::All) => Components::ALL,
            Self::Text(KnownComponents::Published) => Components::PUBLISHED,
            Self::Table(own) => {
                overlay!(own => base; rho pacing hoe recovery_growth queue);
                base
            }
        }
    }
}

impl RtoKeys {
    fn apply(self, limits: &mut RtoLimits) {
        overlay!(self => limits; initial min max granularity tick);
    }
}

impl SynKey {
    /// A schedule by name, or what a table says over the `base`. `linux` differs between a SYN and its
    /// answer.
    fn over(self, mut base: SynSchedule, linux: SynSchedule) -> SynSchedule {
        match self {
            Self::Text(KnownSchedule::Linux) => linux,
            Self::Text(KnownSchedule::Rfc6298) => SynSchedule::RFC6298,
            Self::Text(KnownSchedule::Opnet) => SynSchedule::OPNET,
            Self::Text(KnownSchedule::Windows2003) => SynSchedule::WINDOWS_2003,
            Self::Text(KnownSchedule::Ns) => SynSchedule::NS,
            Self::Table(own) => {
                overlay!(own => base; first linear max waits);
                base
            }
        }
    }
}
