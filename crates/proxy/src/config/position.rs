//! Where in the file an error is: the line, and the key with its table.

use super::ConfigError;

/// What TOML said of `text`, with the place where it is.
pub(super) fn line_error(file: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message().replace('\n', ", ");
    let Some(start) = error.span().map(|span| span.start.min(text.len())) else {
        return ConfigError::Whole { file: file.to_owned(), message };
    };
    let before = text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count();
    ConfigError::Line { file: file.to_owned(), line: before + 1, key: key_on_line(text, before), message }
}

/// The key that line `index` (from zero) gives a value to, or a list that it is in the middle of; with the table it
/// stands in.
fn key_on_line(text: &str, index: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(index + 1).collect();
    let begin = lines.iter().rposition(|line| key_of(line).is_some())?;
    if begin < index && !is_open_list(&lines[begin..index]) {
        return None;
    }
    let key = key_of(lines[begin])?;
    let header = lines[..begin].iter().rev().find_map(|line| line.trim_start().strip_prefix('['));
    let table = header.and_then(|rest| rest.trim_start_matches('[').split(']').next());
    Some(table.map_or_else(|| key.to_owned(), |table| format!("{}.{key}", table.trim())))
}

/// The bare key in front of an equals sign.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    let bare = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (!key.is_empty() && key.chars().all(bare)).then_some(key)
}

/// Whether these lines open more brackets than they close.
fn is_open_list(lines: &[&str]) -> bool {
    let count = |bracket| lines.iter().flat_map(|line| line.chars()).filter(|&c| c == bracket).count();
    count('[') > count(']')
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn message(text: &str) -> String {
        Config::parse("bentpipe.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn an_error_in_a_list_or_in_a_table_of_many_names_its_key() {
        let error =
            message("[[rules]]\naction = \"pass\"\n[[rules]]\naction = \"pass\"\nport = [22, \"x\"]\n");
        assert!(error.starts_with("bentpipe.toml, line 5, key rules.port: \"x\" is not a port"), "{error}");

        let error =
            message("[[rules]]\naction = \"pass\"\nclient = [\n  \"10.0.0.0/8\",\n  \"10.1.2.3/16\",\n]\n");
        assert!(error.contains("key rules.client: \"10.1.2.3/16\" has bits set"), "{error}");

        let error = message("[legs.a]\ninterface = \"sat0\"\nthis is not TOML\n");
        assert!(error.starts_with("bentpipe.toml, line 3: "), "{error}");
    }
}
