//! Metrics in the text format of OpenMetrics 1.0, which Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::{Kind, Metric};

/// The media type of [`Exposition::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The units that OpenMetrics knows from a metric's name, as names have them.
const BASE_UNITS: [&str; 4] = ["bytes_per_second", "seconds", "bytes", "ratio"];

/// Integers below this number are exact as `f64`.
const MAX_WHOLE: f64 = (1_u64 << 53) as f64;

/// Labels of a sample: names and values.
type Labels = Vec<(&'static str, String)>;

/// The values of metrics at one moment.
#[derive(Debug, Default)]
pub struct Exposition(Vec<Family>);

#[derive(Debug)]
struct Family {
    /// Without `_total` and unit.
    stem: &'static str,
    unit: Option<Unit>,
    is_counter: bool,
    help: String,
    samples: Vec<(Labels, f64)>,
}

impl Exposition {
    /// Adds metrics of one source.
    pub fn add<S>(&mut self, metrics: &[Metric<S>], source: &S) {
        self.add_each(metrics, &[(Labels::new(), source)]);
    }

    /// Adds metrics of several sources, each with its labels.
    pub fn add_each<S>(&mut self, metrics: &[Metric<S>], sources: &[(Labels, &S)]) {
        for metric in metrics {
            let sample = |(labels, source): &(Labels, &S)| Some((labels.clone(), (metric.value)(source)?));
            self.0.push(Family::new(metric, sources.iter().filter_map(sample).collect()));
        }
    }

    /// The text, in which every name begins with `prefix`.
    pub fn encode(self, prefix: &str) -> String {
        let mut registry = Registry::with_prefix(prefix);
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

impl Family {
    fn new<S>(metric: &Metric<S>, samples: Vec<(Labels, f64)>) -> Self {
        let is_counter = metric.kind == Kind::Counter;
        let name = if is_counter { metric.name.trim_end_matches("_total") } else { metric.name };
        let unit = BASE_UNITS.iter().find_map(|unit| {
            let stem = name.strip_suffix(unit)?.strip_suffix('_')?;
            Some((stem, Unit::Other((*unit).to_owned())))
        });
        let (stem, unit) = unit.map_or((name, None), |(stem, unit)| (stem, Some(unit)));
        let help = format!("{} Unit: {}.", metric.help, metric.unit);
        Self { stem, unit, is_counter, help, samples }
    }

    fn encode_value(&self, sample: &mut MetricEncoder<'_>, value: f64) -> fmt::Result {
        // Whole numbers need no decimal point.
        let whole = (value.fract() == 0.0 && (0.0..MAX_WHOLE).contains(&value)).then_some(value as u64);
        match (self.is_counter, whole) {
            (true, Some(whole)) => sample.encode_counter::<NoLabelSet, u64, u64>(&whole, None),
            (true, None) => sample.encode_counter::<NoLabelSet, f64, f64>(&value, None),
            (false, Some(whole)) => sample.encode_gauge(&whole),
            (false, None) => sample.encode_gauge(&value),
        }
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let kind = if family.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric =
                encoder.encode_descriptor(family.stem, &family.help, family.unit.as_ref(), kind)?;
            for (labels, value) in &family.samples {
                // An empty label set would be written as braces.
                if labels.is_empty() {
                    family.encode_value(&mut metric, *value)?;
                } else {
                    family.encode_value(&mut metric.encode_family(labels)?, *value)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &[Metric<f64>] = &[Metric::gauge("value", "things", "A value.", |value| Some(*value))];

    #[test]
    fn special_values_are_written_in_the_words_of_the_format() {
        let sample = |value: f64| {
            let mut exposition = Exposition::default();
            exposition.add(VALUE, &value);
            let text = exposition.encode("test");
            text.lines().find_map(|line| line.strip_prefix("test_value ")).unwrap().to_owned()
        };
        assert_eq!(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e21, 0.5].map(sample),
            ["NaN", "inf", "-inf", "1e21", "0.5"]
        );
    }

    #[test]
    fn the_unit_in_a_name_is_declared_and_counters_end_in_total() {
        let metrics =
            [Metric::<f64>::counter("sent_bytes_total", "bytes", "Bytes sent.", |value| Some(*value))];
        let mut exposition = Exposition::default();
        exposition.add_each(&metrics, &[(vec![("leg", "a\"b".to_owned())], &7.0)]);
        assert_eq!(
            exposition.encode("test"),
            "# HELP test_sent_bytes Bytes sent. Unit: bytes.\n# TYPE test_sent_bytes counter\n\
             # UNIT test_sent_bytes bytes\ntest_sent_bytes_total{leg=\"a\\\"b\"} 7\n# EOF\n"
        );
    }
}
