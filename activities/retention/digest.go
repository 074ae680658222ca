package retention

import (
	"encoding/hex"
	"fmt"
	"io"
)

// Digest is the SHA-256 by which an artifact is addressed. The zero value addresses none that there will be.
type Digest [32]byte

// ParseDigest reads 64 lower-case hexadecimal digits.
func ParseDigest(text string) (digest Digest, err error) {
	if err := digest.UnmarshalText([]byte(text)); err != nil {
		return Digest{}, err
	}
	return digest, nil
}

// String returns the 64 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != digits {
		return fmt.Errorf("digest %.80q: want %d lower-case hexadecimal digits", text, digits)
	}
	for _, digit := range text {
		if !isDigit[digit] {
			return fmt.Errorf("digest %.80q: want %d lower-case hexadecimal digits", text, digits)
		}
	}
	_, err := hex.Decode(d[:], text)
	return err
}

const (
	// digits is how many hexadecimal digits a digest has.
	digits = 2 * len(Digest{})
	// longest is how many hexadecimal digits in a row may hide a digest: in JSON within JSON, an escape such as \b may
	// come right before it. More in a row are other data, such as a dump.
	longest = digits + 8
)

// isDigit says of each byte whether it is a lower-case hexadecimal digit.
var isDigit = func() (is [256]bool) {
	for _, digit := range "0123456789abcdef" {
		is[digit] = true
	}
	return is
}()

// Names returns every digest that text names, each once: whatever could be one is taken for one, since to keep too much
// is harmless. Digests are found as text (JSON, YAML, a protocol buffer's strings), and not where they are compressed,
// encrypted, or encoded in another way.
func Names(text []byte) []Digest {
	var s Scanner
	_, _ = s.Write(text) // it never fails
	return s.Names()
}

// Scanner finds the digests in what is written to it. The zero value is ready to use.
type Scanner struct {
	row   [longest + 1]byte // the digits in a row that came last, as far as they matter
	count int               // how many there were
	found []Digest
	seen  map[Digest]bool
}

var _ io.Writer = (*Scanner)(nil)

// Write takes the next part of the text; it never fails.
func (s *Scanner) Write(text []byte) (int, error) {
	for i := 0; i < len(text); {
		if s.count == 0 {
			// Digits in a row, as many as a digest has, cannot lie between two places that are that far from each other.
			if next := i + digits - 1; next < len(text) && !isDigit[text[next]] {
				i = next + 1
				continue
			}
			for i < len(text) && !isDigit[text[i]] {
				i++
			}
			if i == len(text) {
				break
			}
		}
		if !isDigit[text[i]] {
			s.end()
			i++
			continue
		}
		if s.count < len(s.row) {
			s.row[s.count] = text[i]
			s.count++
		}
		i++
	}
	return len(text), nil
}

// end takes the digits that came in a row.
func (s *Scanner) end() {
	if s.count <= longest {
		for first := 0; first+digits <= s.count; first++ {
			s.add(s.row[first : first+digits])
		}
	}
	s.count = 0
}

func (s *Scanner) add(text []byte) {
	digest, err := ParseDigest(string(text))
	if err != nil || s.seen[digest] {
		return
	}
	if s.seen == nil {
		s.seen = map[Digest]bool{}
	}
	s.seen[digest] = true
	s.found = append(s.found, digest)
}

// Names returns every digest in what was written so far, which ends here.
func (s *Scanner) Names() []Digest {
	s.end()
	return s.found
}
