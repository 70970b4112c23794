//! The `Nats-…` headers of one message, found in one pass. Names are compared byte by byte, as nats-server does.

const FOUND_MAX: usize = 16;
const PREFIX: &[u8] = b"Nats-";

/// Up to sixteen headers whose name begins with `Nats-`, in order. The first of a name counts.
#[derive(Debug, Default)]
pub struct Headers<'a> {
    found: [(&'a [u8], &'a [u8]); FOUND_MAX],
    count: usize,
}

impl<'a> Headers<'a> {
    pub fn parse(block: &'a [u8]) -> Self {
        let mut headers = Headers::default();
        let mut at = 0;
        while let Some(end) = memchr::memchr(b'\n', &block[at..]) {
            let line = &block[at..at + end];
            at += end + 1;
            if !line.starts_with(PREFIX) || headers.count == FOUND_MAX {
                continue;
            }
            if let Some(colon) = memchr::memchr(b':', line) {
                headers.found[headers.count] = (&line[..colon], line[colon + 1..].trim_ascii());
                headers.count += 1;
            }
        }
        headers
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.found[..self.count].iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// One header of a block, whatever its name.
pub fn value_of<'a>(block: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    for line in block.split(|byte| *byte == b'\n') {
        if let Some(rest) = line.strip_prefix(name) {
            if let Some(value) = rest.strip_prefix(b":") {
                return Some(value.trim_ascii());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ours_and_the_first_of_a_name() {
        let block = b"NATS/1.0\r\nA: 1\r\nNats-Msg-Id:  x 1 \r\nNats-Msg-Id: y\r\nnats-ttl: 5\r\n\r\n";
        let headers = Headers::parse(block);
        assert_eq!(headers.get(b"Nats-Msg-Id"), Some(&b"x 1"[..]));
        assert_eq!(headers.get(b"Nats-TTL"), None);
        assert!(Headers::parse(b"NATS/1.0\r\nA: 1\r\n\r\n").is_empty() && Headers::parse(b"garbage").is_empty());
        assert_eq!(value_of(block, b"A"), Some(&b"1"[..]));
    }
}
