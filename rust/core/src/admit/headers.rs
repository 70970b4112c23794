//! The headers of one message that mean something here, found in one pass. Names are compared byte by byte, as
//! nats-server does.

const FOUND_MAX: usize = 16;
const PREFIX: &[u8] = b"Nats-";
const PRODUCER: &[u8] = b"Headrace-Producer";
const PRODUCER_NUMBERS: &[u8] = b"-Seq";

/// Up to sixteen headers whose name begins with `Nats-`, in order, and who produced it. The first of a name counts.
#[derive(Debug, Default)]
pub struct Headers<'a> {
    found: [(&'a [u8], &'a [u8]); FOUND_MAX],
    count: usize,
    pub producer: Option<&'a [u8]>,
    pub producer_numbers: Option<&'a [u8]>,
}

/// Of a message that has none.
pub static NO_HEADERS: Headers<'static> =
    Headers { found: [(&[], &[]); FOUND_MAX], count: 0, producer: None, producer_numbers: None };

impl<'a> Headers<'a> {
    pub fn parse(block: &'a [u8]) -> Self {
        let mut headers = Headers::default();
        headers.read(block);
        headers
    }

    /// Those of another message, in the same place: making the array anew costs as much as reading the headers.
    pub fn read(&mut self, block: &'a [u8]) {
        (self.count, self.producer, self.producer_numbers) = (0, None, None);
        let mut at = 0;
        while let Some(end) = memchr::memchr(b'\n', &block[at..]) {
            let line = &block[at..at + end];
            at += end + 1;
            if !line.starts_with(PREFIX) || self.count == FOUND_MAX {
                if let Some(rest) = line.strip_prefix(PRODUCER) {
                    self.note_producer(rest);
                }
                continue;
            }
            if let Some(colon) = memchr::memchr(b':', line) {
                self.found[self.count] = (&line[..colon], line[colon + 1..].trim_ascii());
                self.count += 1;
            }
        }
    }

    fn note_producer(&mut self, line: &'a [u8]) {
        if let Some(name) = line.strip_prefix(b":") {
            self.producer = self.producer.or(Some(name.trim_ascii()));
        } else if let Some(numbers) = line.strip_prefix(PRODUCER_NUMBERS).and_then(|rest| rest.strip_prefix(b":")) {
            self.producer_numbers = self.producer_numbers.or(Some(numbers.trim_ascii()));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0 && !self.names_producer()
    }

    /// Whether one of the two headers about the producer is there.
    pub fn names_producer(&self) -> bool {
        self.producer.is_some() || self.producer_numbers.is_some()
    }

    /// None also for a header without a value: nats-server makes no difference.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let found = self.found[..self.count].iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
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
        assert_eq!(Headers::parse(b"NATS/1.0\r\nNats-TTL: \r\nNats-TTL: 5\r\n\r\n").get(b"Nats-TTL"), None);
        assert!(Headers::parse(b"NATS/1.0\r\nA: 1\r\n\r\n").is_empty() && Headers::parse(b"garbage").is_empty());
        assert_eq!(value_of(block, b"A"), Some(&b"1"[..]));
    }

    #[test]
    fn the_producer_is_found_behind_any_number_of_others() {
        let many = "Nats-X: 1\r\n".repeat(FOUND_MAX + 4);
        let tail = "Headrace-Producers: z\r\nHeadrace-Producer: a b \r\nHeadrace-Producer-Seq: 4-7\r\n";
        let block = format!("NATS/1.0\r\n{many}{tail}Headrace-Producer: c\r\n\r\n");
        let headers = Headers::parse(block.as_bytes());
        assert_eq!((headers.producer, headers.producer_numbers), (Some(&b"a b"[..]), Some(&b"4-7"[..])));
        let alone = Headers::parse(b"NATS/1.0\r\nHeadrace-Producer-Seq: 4\r\n\r\n");
        assert!(alone.names_producer() && !alone.is_empty());
    }
}
