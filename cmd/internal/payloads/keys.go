package payloads

import (
	"bufio"
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
)

const (
	// keySize is the size of a key, in bytes: that of AES-256.
	keySize = 32
	// mostKeys bounds the file of keys, in bytes.
	mostKeys = 64 << 10
	// markInfo and encryptInfo keep apart what is derived of a key.
	markInfo, encryptInfo = "spillway payload key mark", "spillway payload"
	// markSize is the size of a mark, in bytes: another key has the same once in 2^64.
	markSize = 8
)

// Keys are the keys of a file: the first encrypts, all decrypt. The nil Keys have none.
type Keys struct {
	keys []key
	lost []string // the IDs of those that nobody has any more
}

// lost stands in a line in the place of a key that nobody has any more: what it has encrypted is given up.
const lost = "lost"

// key is one of them.
type key struct {
	id     string
	secret []byte
}

// idForm is what a key may be called: its ID lies beside each payload, and in messages.
var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ReadKeys reads a file of keys: of each a line with its ID and 32 bytes as base64, between which is a space; or
// "lost" in the place of the key, which has the engine do without it. Lines that are empty or begin with # are left
// out. The file must be one that others can neither read nor change. Errors
// repeat no key.
func ReadKeys(file string) (*Keys, error) {
	text, err := secrecy.ReadFile(file, mostKeys)
	if err != nil {
		return nil, err
	}
	keys, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return keys, nil
}

func parse(text []byte) (*Keys, error) {
	all := &Keys{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if id, is := strings.CutSuffix(line, " "+lost); is && idForm.MatchString(strings.TrimSpace(id)) {
			all.lost = append(all.lost, strings.TrimSpace(id))
			continue
		}
		one, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("line %d %w", number, err)
		}
		for _, other := range all.keys {
			if other.id == one.id {
				return nil, fmt.Errorf("line %d has another key of the ID %q: give each its own", number, one.id)
			}
			if bytes.Equal(other.secret, one.secret) {
				return nil, fmt.Errorf("line %d has the key of %q again: make another", number, other.id)
			}
		}
		all.keys = append(all.keys, one)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all.keys) == 0 {
		return nil, errors.New("it has no key")
	}
	for _, id := range all.lost {
		if _, there := all.find(id); there {
			return nil, fmt.Errorf("it says that the key %q is lost, and has it: leave one of the lines out", id)
		}
	}
	return all, nil
}

// parseKey reads a line. What stands in it may be a key in another form: nothing of it is repeated.
func parseKey(line string) (key, error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return key{}, errors.New("is not an ID, a space and a key")
	}
	if !idForm.MatchString(fields[0]) {
		return key{}, errors.New("has no ID before the key: letters, digits, '.', '_' and '-', at most 64")
	}
	secret, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil || len(secret) != keySize {
		return key{}, fmt.Errorf("has a key that is not %d bytes as base64", keySize)
	}
	if bytes.Equal(secret, bytes.Repeat(secret[:1], keySize)) {
		return key{}, errors.New("has a key of one byte again and again: make one with `openssl rand -base64 32`")
	}
	return key{fields[0], secret}, nil
}

// IDs are those of the keys; the first one is of the key that encrypts.
func (k *Keys) IDs() []string {
	if k == nil {
		return nil
	}
	ids := make([]string, 0, len(k.keys))
	for _, one := range k.keys {
		ids = append(ids, one.id)
	}
	return ids
}

// gaveUp reports whether the key of an ID is said to be lost.
func (k *Keys) gaveUp(id string) bool { return k != nil && slices.Contains(k.lost, id) }

// find returns the key of an ID.
func (k *Keys) find(id string) (found key, ok bool) {
	if k == nil {
		return key{}, false
	}
	for _, one := range k.keys {
		if one.id == id {
			return one, true
		}
	}
	return key{}, false
}

// mark tells a key from others, and tells nothing else of it.
func (k key) mark() string {
	mark, err := hkdf.Key(sha256.New, k.secret, nil, markInfo, markSize)
	if err != nil { // only of lengths that there are not
		panic(fmt.Sprintf("derive the mark of a key: %v", err))
	}
	return hex.EncodeToString(mark)
}
