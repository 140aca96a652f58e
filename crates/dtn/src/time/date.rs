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

    /// A date and a time of day in UTC; `None` before 2000, after 9999, and where the calendar has none.
    pub(crate) fn from_utc(date: (u64, u64, u64), time: (u64, u64, u64)) -> Option<Self> {
        let ((year, month, day), (hour, minute, second)) = (date, time);
        let is_time = hour < 24 && minute < 60 && second < 60;
        if !(2000..=9999).contains(&year) || !(1..=12).contains(&month) || !is_time {
            return None;
        }
        let (year, month) = (i64::try_from(year).ok()?, i64::try_from(month).ok()?);
        let first = days_from_civil(year, month, 1);
        let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        let length = u64::try_from(days_from_civil(next.0, next.1, 1) - first).ok()?;
        if !(1..=length).contains(&day) {
            return None;
        }
        let days = u64::try_from(first).ok()? + day - 1;
        Some(Self::from_unix(Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second)))
    }

    /// The date and time in UTC (RFC 3339), `2027-01-31T06:00:00.123Z`.
    pub(crate) fn to_date(self) -> String {
        let since_1970 = self.to_unix();
        let (days, second) = (since_1970.as_secs() / 86_400, since_1970.as_secs() % 86_400);
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let millis = since_1970.subsec_millis();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
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

/// The day of the Gregorian calendar that is so many days after 1970-01-01, with years that begin in March, too.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01, and their place in the 400 years after which the calendar repeats.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (year * 365 + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn days_have_their_date(days in 0_u64..4_000_000) {
            let (year, month, day) = civil_from_days(days);
            prop_assert!((1..=12).contains(&month) && (1..=31).contains(&day));
            prop_assert_eq!(days_from_civil(year as i64, month as i64, day as i64), days as i64);
        }
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        assert_eq!(DtnTime::from_millis(0).to_date(), "2000-01-01T00:00:00.000Z");
        let leap = DtnTime::of_date("2028-02-29T23:59:59.25Z".parse().unwrap()).unwrap();
        assert_eq!(leap.to_date(), "2028-02-29T23:59:59.250Z");
        // The longest is no date of anybody's, and no panic.
        assert!(DtnTime::from_millis(u64::MAX).to_date().ends_with('Z'));
    }

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
    fn dates_that_the_calendar_does_not_have_are_none() {
        let noon = |year, month, day| DtnTime::from_utc((year, month, day), (12, 0, 0)).map(DtnTime::millis);
        assert_eq!(noon(2000, 1, 1), Some(43_200_000));
        assert_eq!(noon(2000, 2, 29), Some(59 * 86_400_000 + 43_200_000));
        for (year, month, day) in [(1999, 12, 31), (2001, 2, 29), (2100, 2, 29), (2001, 13, 1), (2001, 4, 31)]
        {
            assert_eq!(noon(year, month, day), None, "{year}-{month}-{day}");
        }
        assert!(noon(2027, 12, 31).is_some() && noon(9999, 12, 31).is_some() && noon(10_000, 1, 1).is_none());
        assert_eq!(noon(2027, 0, 1).or(noon(2027, 1, 0)).or(noon(2027, 1, u64::MAX)), None);
        assert_eq!(DtnTime::from_utc((2027, 1, 1), (24, 0, 0)), None);
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
