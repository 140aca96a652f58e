//! Dates of a configuration, as bundles count time.

use std::time::Duration;

use bentpipe_config::DateTime;
use serde::{Deserialize, Deserializer, de::Error};
use toml::value::{Datetime, Offset};

use super::DtnTime;

impl DtnTime {
    /// Reads a date and time with an offset, `2027-01-31T06:00:00Z`.
    pub(crate) fn from_date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let DateTime(datetime) = DateTime::deserialize(deserializer)?;
        Self::of_date(datetime).map_err(D::Error::custom)
    }

    fn of_date(datetime: Datetime) -> Result<Self, String> {
        let (Some(date), Some(time), Some(offset)) = (datetime.date, datetime.time, datetime.offset) else {
            return Err(format!("{datetime} lacks date, time or offset; write 2027-01-31T06:00:00Z"));
        };
        let days = days_from_civil(date.year.into(), date.month.into(), date.day.into());
        let minutes_east = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes),
        };
        let seconds = days * 86_400
            + i64::from(time.hour) * 3600
            + i64::from(time.minute) * 60
            + i64::from(time.second.unwrap_or(0))
            - minutes_east * 60;
        let since_1970 = u64::try_from(seconds).map_err(|_| format!("{datetime} is before 1970"))?;
        let nanos = time.nanosecond.unwrap_or(0);
        Ok(Self::from_unix(Duration::new(since_1970, nanos)))
    }
}

/// Days from 1970-01-01 to a day of the Gregorian calendar. Years begin in March here, so that the leap day
/// is their last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((2000, 1, 1), 10_957),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2100, 3, 1), 47_541),
            ((1969, 12, 31), -1),
        ] {
            assert_eq!(days_from_civil(date.0, date.1, date.2), days, "{date:?}");
        }
    }

    #[test]
    fn offsets_count() {
        let date = |text: &str| DtnTime::of_date(text.parse().unwrap());
        assert_eq!(date("2000-01-01T01:00:00+01:00").unwrap(), DtnTime::from_millis(0));
        assert_eq!(date("2000-01-02T00:00:00.5Z").unwrap(), DtnTime::from_millis(86_400_500));
        assert!(date("2000-01-02").unwrap_err().contains("offset"));
        assert!(date("1950-01-02T00:00:00Z").unwrap_err().contains("1970"));
    }
}
