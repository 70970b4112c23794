//! Command line: positional words, then `--name value`.

use std::collections::HashMap;

pub struct Args {
    pub mode: String,
    pub words: Vec<String>,
    options: HashMap<String, String>,
}

impl Args {
    pub fn from_env() -> Result<Args, String> {
        let mut words = Vec::new();
        let mut options = HashMap::new();
        let mut rest = std::env::args().skip(1).peekable();
        while let Some(word) = rest.next() {
            match word.strip_prefix("--") {
                Some(name) => {
                    let value = rest.next_if(|next| !next.starts_with("--")).unwrap_or_default();
                    options.insert(name.to_owned(), value);
                }
                None => words.push(word),
            }
        }
        if words.is_empty() {
            return Err("say what to do: pub, fetch, push, core or req".into());
        }
        Ok(Args { mode: words.remove(0), words, options })
    }

    pub fn word(&self, at: usize, what: &str) -> Result<&str, String> {
        self.words.get(at).map(String::as_str).ok_or_else(|| format!("{} needs {what}", self.mode))
    }

    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        match self.options.get(name) {
            Some(value) => value.parse().map_err(|_| format!("--{name} {value}: not a number")),
            None => Ok(default),
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }
}
