//! Quantities as scenarios write them: `10Mbit/s`, `12.5ms`, `64KiB`, `1%`. Decimals are read exactly.

use toml::Value;

/// A decimal number: `digits` · 10^`exponent`.
struct Decimal {
    digits: u128,
    exponent: i32,
}

impl Decimal {
    /// Reads the number at the beginning of a text; with it, what is behind.
    fn split(text: &str) -> Result<(Self, &str), String> {
        let text = text.trim();
        let is_number = |(index, char): &(usize, char)| {
            let before = text[..*index].chars().next_back();
            let after = text[*index..].chars().nth(1);
            let exponent = matches!(before, Some('e' | 'E'));
            match char {
                '0'..='9' | '.' => true,
                '+' | '-' => exponent,
                'e' | 'E' => after.is_some_and(|after| after.is_ascii_digit() || "+-".contains(after)),
                _ => false,
            }
        };
        let end = text.char_indices().take_while(is_number).map(|(index, char)| index + char.len_utf8());
        let (number, unit) = text.split_at(end.last().unwrap_or(0));
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let fraction = fraction.trim_end_matches('0');
        let parsed = format!("{whole}{fraction}").parse().ok().zip(exponent.parse::<i32>().ok());
        let (digits, exponent) = parsed.ok_or_else(|| format!("\"{text}\" does not begin with a number"))?;
        Ok((Self { digits, exponent: exponent - fraction.len() as i32 }, unit.trim()))
    }

    /// The number times `scale`, rounded to the nearest whole one, halves up.
    fn times(&self, scale: u64) -> Option<u64> {
        let scaled = self.digits.checked_mul(scale.into())?;
        let power = 10u128.checked_pow(self.exponent.unsigned_abs());
        let whole = match (self.exponent >= 0, power) {
            (true, power) => scaled.checked_mul(power?)?,
            (false, Some(power)) => (scaled + power / 2) / power,
            (false, None) => 0,
        };
        u64::try_from(whole).ok()
    }
}

/// Nanoseconds.
pub(crate) fn nanos(text: &str) -> Result<u64, String> {
    let (number, unit) = Decimal::split(text)?;
    let scale = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if number.digits == 0 => 1,
        _ => return Err(format!("\"{text}\" has no unit of time: write for example 300ms")),
    };
    number.times(scale).ok_or_else(|| format!("\"{text}\" is too long a time"))
}

/// Bits per second.
pub(crate) fn bits_per_second(text: &str) -> Result<u64, String> {
    let (number, unit) = Decimal::split(text)?;
    let small = unit.to_ascii_lowercase();
    let bits = ["bits/sec", "bits/s", "bit/sec", "bit/s", "bits", "bit", "bps"];
    let prefix = bits.iter().find_map(|suffix| small.strip_suffix(suffix)).unwrap_or(&small);
    let scale = match prefix {
        "" if prefix != small => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        _ => return Err(format!("\"{text}\" has no unit of a bit rate: write for example 10Mbit/s")),
    };
    match number.times(scale) {
        Some(rate) if rate > 0 => Ok(rate),
        _ => Err(format!("\"{text}\" is no rate of a link")),
    }
}

/// Bytes, of a text or a whole number.
pub(crate) fn bytes(value: &Value) -> Result<u64, String> {
    let text = match value {
        Value::Integer(number) => number.to_string(),
        value => text(value)?.to_owned(),
    };
    let (number, unit) = Decimal::split(&text)?;
    let scale = match unit {
        "" | "B" => 1,
        "k" | "K" | "kB" | "KB" => 1_000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(format!("\"{text}\" has no unit of bytes: write for example 150kB")),
    };
    number.times(scale).ok_or_else(|| format!("\"{text}\" is too many bytes"))
}

/// A probability, of a text or a number.
pub(crate) fn probability(value: &Value) -> Result<f64, String> {
    let number = match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        value => {
            let text = text(value)?.trim();
            match text.strip_suffix('%') {
                Some(percent) => percent.trim().parse::<f64>().ok().map(|percent| percent / 100.0),
                None => text.parse().ok(),
            }
        }
    };
    match number {
        Some(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err(format!("{value} is not a probability")),
    }
}

pub(crate) fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is not a text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        assert_eq!(nanos("12.5ms"), Ok(12_500_000));
        assert_eq!(nanos("0.1ms"), Ok(100_000));
        assert_eq!(nanos("2880s"), Ok(2_880_000_000_000));
        assert_eq!(nanos("0"), Ok(0));
        assert_eq!(nanos("1.5e-3 s"), Ok(1_500_000));
        assert!(nanos("5").is_err() && nanos("ms").is_err() && nanos("1e300h").is_err());
    }

    #[test]
    fn rates_are_bits() {
        for text in ["10M", "10Mbit/s", "10 Mbps", "10000k", "1e7bit", "0.01Gbit/s"] {
            assert_eq!(bits_per_second(text), Ok(10_000_000), "{text}");
        }
        assert_eq!(bits_per_second("1mibit"), Ok(1 << 20));
        assert!(["10", "10MB/s", "0M"].iter().all(|text| bits_per_second(text).is_err()));
    }

    #[test]
    fn bytes_and_probabilities_may_be_numbers() {
        assert_eq!(bytes(&Value::Integer(1500)), Ok(1500));
        assert_eq!(bytes(&Value::from("2.25MB")), Ok(2_250_000));
        assert_eq!(probability(&Value::from("1%")), Ok(0.01));
        assert_eq!(probability(&Value::Float(0.5)), Ok(0.5));
        assert_eq!(probability(&Value::from("1e-3")), Ok(0.001));
        assert!(probability(&Value::Integer(2)).is_err());
    }
}
