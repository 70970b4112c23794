//! CRC-32 with the polynomial that `file_crc_poly` names (reversed form). The two common ones have instructions
//! of their own; any other is computed from a table.

pub const IEEE: u32 = 0xEDB8_8320;
pub const CASTAGNOLI: u32 = 0x82F6_3B78;

pub enum Crc {
    Ieee,
    Castagnoli,
    Other(Box<[u32; 256]>),
}

impl Crc {
    pub fn new(polynomial: u32) -> Self {
        match polynomial {
            IEEE => Crc::Ieee,
            CASTAGNOLI => Crc::Castagnoli,
            _ => Crc::Other(Box::new(table(polynomial))),
        }
    }

    pub fn of(&self, bytes: &[u8]) -> u32 {
        match self {
            Crc::Ieee => crc32fast::hash(bytes),
            Crc::Castagnoli => crc32c::crc32c(bytes),
            Crc::Other(table) => !bytes.iter().fold(u32::MAX, |crc, byte| step(table, crc, *byte)),
        }
    }
}

fn step(table: &[u32; 256], crc: u32, byte: u8) -> u32 {
    table[(crc as u8 ^ byte) as usize] ^ (crc >> 8)
}

fn table(polynomial: u32) -> [u32; 256] {
    std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_the_instructions() {
        let bytes: Vec<u8> = (0..1000u32).map(|n| (n * 7) as u8).collect();
        for polynomial in [IEEE, CASTAGNOLI] {
            let by_table = Crc::Other(Box::new(table(polynomial)));
            assert_eq!(by_table.of(&bytes), Crc::new(polynomial).of(&bytes));
        }
        assert_eq!(Crc::new(IEEE).of(b"123456789"), 0xCBF4_3926);
    }
}
