//! Dates as days since 1970, and back. Pure.
//!
//! Years begin in March here, so that a leap day is the last day of its year.

/// From March 1st of the year 0 to January 1st of 1970.
const DAYS_TO_1970: i64 = 719_468;

/// The days of 400 years, which are always as many.
const DAYS_OF_400_YEARS: i64 = 146_097;

/// Days from 1970-01-01 to a date, which must be one.
pub(crate) fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = if month <= 2 { month + 9 } else { month - 3 };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - DAYS_TO_1970
}

/// The year, the month and the day that is so many days after 1970-01-01.
pub(crate) fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let (era, of_era) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (DAYS_OF_400_YEARS - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_days() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2049, 12, 31), 29_219),
            ((2100, 3, 1), 47_541),
        ] {
            assert_eq!((days_until(date.0, date.1, date.2), date_of(days)), (days, date));
        }
    }

    /// One after the other, over more than 400 years.
    #[test]
    fn every_day_has_one_date() {
        for days in 0..DAYS_OF_400_YEARS + 1000 {
            let (year, month, day) = date_of(days);
            assert_eq!(days_until(year, month, day), days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }
    }
}
