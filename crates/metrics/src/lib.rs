//! Metrics, each declared once with its name, kind, unit and help.
//!
//! [`metrics!`] declares the counters of a daemon. From the declaration come the struct of their values,
//! which is also what snapshots and JSON documents hold, the struct of atomic counters, the exposition for
//! Prometheus ([`Exposition`]) and the table in the documentation ([`table`]). To add a counter is to add its
//! line to the declaration, and the line of code that increments it. Values that are not counted but read,
//! such as a round-trip time, are [`Metric`]s over whatever struct has them.

mod counter;
mod exposition;

pub use counter::{Counter, SharedCounter};
pub use exposition::{CONTENT_TYPE, Exposition};

use std::fmt::Write;

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows. Its name ends in `_total`.
    Counter,
    /// It is a present state. The values of several threads add up, and a successor starts from zero.
    Gauge,
    /// It is the maximum so far of a gauge. The value of several threads is their maximum.
    Peak,
}

/// A metric, and where its value is in a `S`.
#[derive(Debug)]
pub struct Metric<S: 'static> {
    /// Its name without the daemon's prefix. Base units are in the name, as in `uptime_seconds`.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its unit: a base unit, or the things that it counts.
    pub unit: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// Its value; `None` where it is unknown, which leaves the sample out.
    pub value: fn(&S) -> Option<f64>,
}

impl<S> Metric<S> {
    /// A metric that only grows.
    pub const fn counter(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        value: fn(&S) -> Option<f64>,
    ) -> Self {
        Self { name, kind: Kind::Counter, unit, help, value }
    }

    /// A metric of a present state.
    pub const fn gauge(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        value: fn(&S) -> Option<f64>,
    ) -> Self {
        Self { name, kind: Kind::Gauge, unit, help, value }
    }
}

/// Appends the rows of a Markdown table: name, kind, unit, help.
pub fn table<S>(rows: &mut String, prefix: &str, metrics: &[Metric<S>]) {
    for Metric { name, kind, unit, help, .. } in metrics {
        let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
        // Writing to a String does not fail.
        let _ = writeln!(rows, "| `{prefix}_{name}` | {kind} | {unit} | {help} |");
    }
}

/// Declares the counters of a daemon.
///
/// ```
/// bentpipe_metrics::metrics! {
///     /// What a daemon has done.
///     #[derive(Debug, Clone, Copy, Default, PartialEq)]
///     pub struct Stats {
///         flows_open: Gauge("flows_open", "flows", "Open flows."),
///         bytes_up: Counter("up_bytes_total", "bytes", "Payload sent to servers."),
///     }
///     /// The counters of one thread.
///     #[derive(Debug, Default)]
///     pub struct Counters of bentpipe_metrics::Counter {}
/// }
/// let counters = Counters::default();
/// counters.bytes_up.add(7);
/// let stats = counters.read().plus(&counters.read());
/// assert_eq!(stats, Stats { flows_open: 0, bytes_up: 14 });
/// assert_eq!(Stats::METRICS[1].name, "up_bytes_total");
/// ```
///
/// `..snoop: SnoopStats as SnoopCounters` behind the metrics embeds another pair of structs that this macro
/// has declared. Names in the braces of the second struct are counters that no metric shows.
#[macro_export]
macro_rules! metrics {
    // The struct of values, and the struct of counters.
    (
        $(#[$meta:meta])*
        $vis:vis struct $stats:ident {
            $($(#[$attribute:meta])* $field:ident: $kind:ident($name:literal, $unit:literal, $help:literal),)*
            $(..$(#[$part_attribute:meta])* $part:ident: $part_type:ty as $part_counters:ty,)*
        }
        $(#[$counters_meta:meta])*
        $counters_vis:vis struct $counters:ident of $counter:ty { $($internal:ident,)* }
    ) => {
        $crate::metrics! {
            $(#[$meta])*
            $vis struct $stats {
                $($(#[$attribute])* $field: $kind($name, $unit, $help),)*
                $(..$(#[$part_attribute])* $part: $part_type,)*
            }
        }

        $(#[$counters_meta])*
        $counters_vis struct $counters {
            $(#[doc = $help] $counters_vis $field: $counter,)*
            $($(#[$part_attribute])* $counters_vis $part: $part_counters,)*
            $($counters_vis $internal: $counter,)*
        }

        impl $counters {
            /// The present values.
            $counters_vis fn read(&self) -> $stats {
                $stats {
                    $($field: self.$field.get(),)*
                    $($part: self.$part.read(),)*
                }
            }
        }
    };
    // The struct of values.
    (
        $(#[$meta:meta])*
        $vis:vis struct $stats:ident {
            $($(#[$attribute:meta])* $field:ident: $kind:ident($name:literal, $unit:literal, $help:literal),)*
            $(..$(#[$part_attribute:meta])* $part:ident: $part_type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $stats {
            $(#[doc = $help] $(#[$attribute])* pub $field: u64,)*
            $($(#[$part_attribute])* pub $part: $part_type,)*
        }

        impl $stats {
            /// Every metric of this struct; those of embedded structs are theirs.
            pub const METRICS: &'static [$crate::Metric<Self>] = &[$(
                $crate::Metric {
                    name: $name,
                    kind: $crate::Kind::$kind,
                    unit: $unit,
                    help: $help,
                    value: |stats| Some(stats.$field as f64),
                },
            )*];

            /// Both together: sums, and the greater one of peaks.
            #[must_use]
            pub fn plus(self, other: &Self) -> Self {
                Self {
                    $($field: $crate::metrics!(@plus $kind, self.$field, other.$field),)*
                    $($part: self.$part.plus(&other.$part),)*
                }
            }

            /// The same without gauges, which describe a process and not its past.
            #[must_use]
            pub fn without_gauges(self) -> Self {
                Self {
                    $($field: $crate::metrics!(@past $kind, self.$field),)*
                    $($part: self.$part.without_gauges(),)*
                }
            }
        }
    };
    (@plus Peak, $one:expr, $other:expr) => { $one.max($other) };
    (@plus $kind:ident, $one:expr, $other:expr) => { $one + $other };
    (@past Gauge, $value:expr) => { 0 };
    (@past $kind:ident, $value:expr) => { $value };
}
