//! The records of a table for programs.

use super::{Cell, Table};

/// The headings and the rows of a table as CSV.
pub(super) fn document(table: &Table) -> String {
    let double: Vec<bool> = (0..table.columns.len()).map(|index| has_intervals(table, index)).collect();
    let columns = table.columns.iter().zip(&double);
    let headings: Vec<String> = columns.flat_map(|(column, double)| keys(&column.key, *double)).collect();
    let record = |row: &Vec<Cell>| -> Vec<String> {
        row.iter().zip(&double).flat_map(|(cell, double)| fields(cell, *double)).collect()
    };
    bentpipe_table::csv(std::iter::once(headings).chain(table.rows.iter().map(record)))
}

fn has_intervals(table: &Table, index: usize) -> bool {
    table.rows.iter().any(|row| matches!(row[index], Cell::Interval(..)))
}

fn keys(key: &str, double: bool) -> Vec<String> {
    if double { vec![format!("{key}_mean"), format!("{key}_ci95")] } else { vec![key.to_owned()] }
}

fn fields(cell: &Cell, double: bool) -> Vec<String> {
    let mut fields = match cell {
        Cell::Text(words) => vec![words.clone()],
        Cell::Number(value, _) => vec![number(*value)],
        Cell::Interval(estimate, _) => {
            vec![number(estimate.value), estimate.half_width.map(number).unwrap_or_default()]
        }
        Cell::Missing => vec![String::new()],
    };
    fields.resize(if double { 2 } else { 1 }, String::new());
    fields
}

/// The shortest decimal that parses to the same `f64`, with an exponent where it would have many zeros.
fn number(value: f64) -> String {
    if value.is_nan() {
        String::new()
    } else if value == 0.0 {
        "0".to_owned()
    } else if value.is_infinite() || (1e-6..1e16).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::table::Column;

    #[test]
    fn special_values_are_empty_or_a_word() {
        assert_eq!([f64::NAN, f64::INFINITY, -0.0].map(number), ["", "inf", "0"]);
    }

    #[test]
    fn a_record_of_one_empty_field_is_not_an_empty_line() {
        let mut table = Table::new("t", vec![Column::new("a", "a")]);
        table.push(vec![Cell::Missing]);
        assert_eq!(table.to_csv(), "a\n\"\"\n");
    }

    #[test]
    fn any_text_comes_back_from_csv_as_it_was() {
        for seed in 0..500 {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let columns = 1 + (random.next_u64() % 4) as usize;
            let mut table = Table::new("t", vec![Column::new("n", "key"); columns]);
            let rows: Vec<Vec<String>> = (0..random.next_u64() % 5)
                .map(|_| (0..columns).map(|_| awkward(&mut random)).collect())
                .collect();
            for row in &rows {
                table.push(row.iter().map(Cell::text).collect());
            }
            let mut expected = vec![vec!["key".to_owned(); columns]];
            expected.extend(rows);
            assert_eq!(parse(&table.to_csv()), expected, "seed {seed}");
        }
    }

    #[test]
    fn any_number_comes_back_from_csv_to_the_last_bit() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let bits = std::iter::repeat_with(|| f64::from_bits(random.next_u64()));
        let edges = [f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.1, 1e16, 1e-6, -1.0 / 3.0];
        for value in bits.take(10_000).chain(edges).filter(|value| value.is_finite()) {
            let text = number(value);
            assert_eq!(text.parse::<f64>().unwrap(), value, "{text}");
            assert!(text.len() <= 25, "{text} is long");
        }
    }

    /// A short text of the letters that CSV could trip over.
    fn awkward(random: &mut impl Rng) -> String {
        const LETTERS: [char; 10] = ['"', ',', '\n', '\r', ' ', 'a', 'ρ', ';', '\t', '\''];
        (0..random.next_u64() % 6).map(|_| LETTERS[(random.next_u64() % 10) as usize]).collect()
    }

    /// A reader of RFC 4180, by its grammar and not by the writer above.
    fn parse(text: &str) -> Vec<Vec<String>> {
        let (mut records, mut record, mut field) = (Vec::new(), Vec::new(), String::new());
        let (mut quoted, mut letters) = (false, text.chars().peekable());
        while let Some(letter) = letters.next() {
            match letter {
                '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => record.push(std::mem::take(&mut field)),
                '\n' if !quoted => {
                    record.push(std::mem::take(&mut field));
                    records.push(std::mem::take(&mut record));
                }
                other => field.push(other),
            }
        }
        assert!(!quoted && record.is_empty() && field.is_empty(), "{text:?} ends in the middle");
        records
    }
}
