//! A connection: bytes out through a buffer, frames in. Non-blocking after the greeting.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use memchr::memchr;

pub struct Link {
    pub stream: TcpStream,
    pub out: Vec<u8>,
    sent: usize,
    unread: Vec<u8>,
    from: usize,
}

/// One message of the server; other lines are dealt with inside.
pub struct Frame<'a> {
    pub reply: &'a [u8],
    pub headers: &'a [u8],
    pub payload: &'a [u8],
}

const CONNECT: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\
\"lang\":\"headrace-load\",\"version\":\"1\",\"protocol\":1,\"echo\":true}\r\nPING\r\n";

impl Link {
    pub fn open(address: &str) -> Result<Link, String> {
        let mut stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        stream.write_all(CONNECT).map_err(|error| error.to_string())?;
        let (mut seen, mut part) = (Vec::new(), [0u8; 4096]);
        while memchr::memmem::find(&seen, b"PONG\r\n").is_none() {
            let count = stream.read(&mut part).map_err(|error| error.to_string())?;
            if count == 0 {
                return Err(format!("{address}: closed: {}", String::from_utf8_lossy(&seen)));
            }
            seen.extend_from_slice(&part[..count]);
        }
        stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok(Link { stream, out: Vec::new(), sent: 0, unread: Vec::new(), from: 0 })
    }

    /// Bytes that the kernel has not taken yet.
    pub fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    pub fn flush(&mut self) -> Result<(), String> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err("closed by the server".into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads what is there. False if there was nothing.
    pub fn fill(&mut self) -> Result<bool, String> {
        if self.from > 0 {
            self.unread.drain(..self.from);
            self.from = 0;
        }
        let mut part = [0u8; 1 << 16];
        let mut any = false;
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Err("closed by the server".into()),
                Ok(count) => {
                    self.unread.extend_from_slice(&part[..count]);
                    any = true;
                    if count < part.len() || self.unread.len() > 4 << 20 {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The next message of what was read.
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, String> {
        loop {
            let rest = &self.unread[self.from..];
            let Some(end) = memchr(b'\n', rest) else { return Ok(None) };
            let line = &rest[..end.saturating_sub(1)];
            if line.starts_with(b"PING") {
                self.from += end + 1;
                self.out.extend_from_slice(b"PONG\r\n");
                continue;
            }
            if line.starts_with(b"-ERR") {
                return Err(String::from_utf8_lossy(line).into_owned());
            }
            let headed = line.starts_with(b"HMSG ");
            if !headed && !line.starts_with(b"MSG ") {
                self.from += end + 1;
                continue;
            }
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let sizes = if headed { 2 } else { 1 };
            let size = number(fields[fields.len() - 1]) as usize;
            let header = if headed { number(fields[fields.len() - 2]) as usize } else { 0 };
            let with_reply = fields.len() == 4 + sizes;
            let (start, base) = (end + 1, self.from);
            if rest.len() < start + size + 2 {
                return Ok(None);
            }
            let reply_at = with_reply.then(|| fields[3].as_ptr() as usize - rest.as_ptr() as usize);
            let reply_len = if with_reply { fields[3].len() } else { 0 };
            self.from += start + size + 2;
            let all = &self.unread[base..];
            let reply_at = reply_at.unwrap_or(0);
            return Ok(Some(Frame {
                reply: &all[reply_at..reply_at + reply_len],
                headers: &all[start..start + header],
                payload: &all[start + header..start + size],
            }));
        }
    }
}

pub fn number(text: &[u8]) -> u64 {
    text.iter().take_while(|byte| byte.is_ascii_digit()).fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'))
}
