//! Camera raw files are told from pictures, though they begin as TIFF.

use stoker::image::{Limits, decode};

/// A directory of a TIFF file: fields of tag, type, count and value, and no directory after it.
fn directory(fields: &[(u16, u16, u32, u32)]) -> Vec<u8> {
    let mut bytes = u16::try_from(fields.len()).unwrap().to_le_bytes().to_vec();
    for (tag, kind, count, value) in fields {
        bytes.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        bytes.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    bytes.extend([0; 4]);
    bytes
}

fn tiff(fields: &[(u16, u16, u32, u32)]) -> Vec<u8> {
    [b"II*\0\x08\0\0\0".to_vec(), directory(fields)].concat()
}

fn told(bytes: &[u8]) -> String {
    decode(bytes, &Limits::default()).unwrap_err().to_string()
}

#[test]
fn camera_raw_is_refused_by_name() {
    let dng = tiff(&[(254, 4, 1, 1), (50_706, 1, 4, 0x0401)]);
    let mosaic = tiff(&[(262, 3, 1, 32_803)]);
    let arw = tiff(&[(259, 3, 1, 32_767)]);
    // One directory below, whose offset is the value itself: 8 + 2 + 12 + 4.
    let nef = [tiff(&[(330, 4, 1, 26)]), directory(&[(33_422, 1, 4, 0)])].concat();
    // Two below, whose offsets are in a list.
    let list = [tiff(&[(330, 4, 2, 26)]), 0_u32.to_le_bytes().to_vec(), 34_u32.to_le_bytes().to_vec()].concat();
    let second = [list, directory(&[(259, 3, 1, 34_713)])].concat();
    let big_endian = b"MM\0*\0\0\0\x08\0\x01\x01\x06\0\x03\0\0\0\x01\x80\x23\0\0\0\0\0\0".to_vec();
    let cr2 = b"II*\0\x10\0\0\0CR\x02\0\0\0\0\0".to_vec();
    for file in [dng, mosaic, arw, nef, second, big_endian, cr2] {
        assert_eq!(told(&file), "unsupported format: camera raw", "{file:?}");
    }
    for start in
        [&b"IIRO\x08\0\0\0"[..], b"IIU\0\x18\0\0\0", b"FUJIFILMCCD-RAW", b"\0\0\0\x18ftypcrx \0\0\0\x01crx isom"]
    {
        assert_eq!(told(start), "unsupported format: camera raw", "{start:?}");
    }
}

#[test]
fn a_tiff_is_none_of_them() {
    for fields in [&[(256, 3, 1, 4), (259, 3, 1, 5)][..], &[(330, 4, 1, 8)], &[(330, 4, u32::MAX, u32::MAX)]] {
        let error = told(&tiff(fields));
        assert!(!error.contains("camera raw"), "{error}");
    }
}

#[test]
fn other_formats_are_refused_by_name() {
    for (start, name) in [
        (&b"\0\0\0\x0CJXL \r\n\x87\n"[..], "JPEG XL"),
        (b"\xFF\x0A\0\0", "JPEG XL"),
        (b"II\xBC\x01\x08\0\0\0", "JPEG XR"),
        (b"\0\0\0\x14ftypmif1\0\0\0\0miaf", "HEIF"),
    ] {
        assert_eq!(told(start), format!("unsupported format: {name}"));
    }
}
