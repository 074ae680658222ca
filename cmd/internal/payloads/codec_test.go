package payloads

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// keysOf reads the lines of a file of keys.
func keysOf(t *testing.T, lines ...string) *Keys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const (
	october  = "2026-10 qDxVhBN0F8S0mV3zT0bXh6QyB6kNn1m5i0v0x3Jr8Zs="
	november = "2026-11 3v0qk3m1S7m1Yq0c8wTq1l6o7kq4bqk0GmJ7m0o2nXU="
)

func codecOf(keys *Keys) *Codec { return New(keys, slog.New(slog.DiscardHandler)) }

func TestWhatIsEncryptedComesBackAndNothingOfItIsSeen(t *testing.T) {
	t.Parallel()
	codec := codecOf(keysOf(t, november, october))
	rapid.Check(t, func(t *rapid.T) {
		payload := &commonpb.Payload{
			Metadata: map[string][]byte{
				converter.MetadataEncoding: []byte("json/plain"), "type": rapid.SliceOfN(rapid.Byte(), 8, 30).Draw(t, "type"),
			},
			Data: rapid.SliceOfN(rapid.Byte(), 8, 5000).Draw(t, "data"),
		}
		before := proto.Clone(payload)
		encrypted, err := codec.Encode([]*commonpb.Payload{payload, payload})
		if err != nil {
			t.Fatal(err)
		}
		stored, err := proto.Marshal(encrypted[0])
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(stored, payload.GetData()) || bytes.Contains(stored, payload.GetMetadata()["type"]) {
			t.Errorf("what is stored has the payload in it: %q", stored)
		}
		if bytes.Equal(encrypted[0].GetData(), encrypted[1].GetData()) {
			t.Error("equal payloads are equal when they are encrypted")
		}
		decrypted, err := codec.Decode(encrypted)
		if err != nil || !proto.Equal(decrypted[0], before) || !proto.Equal(payload, before) {
			t.Errorf("decrypted %v, %v; the payload is %v, and was %v", decrypted, err, payload, before)
		}
	})
}

func TestAKeyThatIsBelowAnotherOnlyDecrypts(t *testing.T) {
	t.Parallel()
	payload := &commonpb.Payload{Data: []byte("plain")}
	before, err := codecOf(keysOf(t, october)).Encode([]*commonpb.Payload{payload})
	if err != nil {
		t.Fatal(err)
	}
	rotated := codecOf(keysOf(t, "# rotated", november, "", october))
	after, err := rotated.Encode([]*commonpb.Payload{payload})
	if err != nil || string(after[0].GetMetadata()[keyName]) != "2026-11" {
		t.Fatalf("encrypted with %q, %v; want the first key", after[0].GetMetadata()[keyName], err)
	}
	read, err := rotated.Decode([]*commonpb.Payload{before[0], after[0], payload})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range read {
		if !proto.Equal(one, payload) {
			t.Errorf("read %v, want %v: of each key, and what was never encrypted", one, payload)
		}
	}
}

func TestWhatCannotBeReadNamesTheKey(t *testing.T) {
	t.Parallel()
	encrypted, err := codecOf(keysOf(t, october)).Encode([]*commonpb.Payload{{Data: []byte("plain")}})
	if err != nil {
		t.Fatal(err)
	}
	changed := func(change func(*commonpb.Payload)) *commonpb.Payload {
		other, _ := proto.Clone(encrypted[0]).(*commonpb.Payload)
		change(other)
		return other
	}
	for name, row := range map[string]struct {
		keys    *Keys
		payload *commonpb.Payload
		want    UnreadableError
	}{
		"the key is gone": {keysOf(t, november), encrypted[0], UnreadableError{Key: "2026-10"}},
		"no key is there": {nil, encrypted[0], UnreadableError{Key: "2026-10"}},
		"the key of this ID is another": {
			keysOf(t, strings.Replace(november, "2026-11", "2026-10", 1)), encrypted[0],
			UnreadableError{Key: "2026-10", Altered: true},
		},
		"a bit is another": {
			keysOf(t, october), changed(func(p *commonpb.Payload) { p.Data[len(p.Data)-1] ^= 1 }),
			UnreadableError{Key: "2026-10", Altered: true},
		},
		"the salt is another": {
			keysOf(t, october), changed(func(p *commonpb.Payload) { p.Data[0] ^= 1 }),
			UnreadableError{Key: "2026-10", Altered: true},
		},
		"it is cut off": {
			keysOf(t, october), changed(func(p *commonpb.Payload) { p.Data = p.Data[:saltSize+3] }),
			UnreadableError{Key: "2026-10", Altered: true},
		},
		"it is said to be of the other key": {
			keysOf(t, october, november), changed(func(p *commonpb.Payload) { p.Metadata[keyName] = []byte("2026-11") }),
			UnreadableError{Key: "2026-11", Altered: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := codecOf(row.keys).Decode([]*commonpb.Payload{row.payload})
			got, is := errors.AsType[*UnreadableError](err)
			first := fmt.Sprint(err)
			if !is || *got != row.want || !strings.Contains(got.Error(), `"`+row.want.Key+`"`) {
				t.Errorf("Decode: %v, want %+v", err, row.want)
			}
			var value string
			mark := marked(row.payload, err)
			if err := converter.GetDefaultDataConverter().FromPayload(mark, &value); err == nil ||
				!strings.Contains(err.Error(), got.Error()) {
				t.Errorf("who reads a marked one hears %v, want %v in it", err, got)
			}
			kept, err := codecOf(row.keys).Encode([]*commonpb.Payload{mark})
			if err != nil || !proto.Equal(kept[0], row.payload) {
				t.Errorf("a marked one that is handed on is stored as %v, %v, want what it was", kept, err)
			}
			if _, again := codecOf(row.keys).Decode([]*commonpb.Payload{mark}); again == nil || again.Error() != first {
				t.Errorf("one that was stored with its mark is read as %v, want %q", again, first)
			}
		})
	}
}

func TestBadFilesOfKeysAreRefusedAndNothingOfThemIsRepeated(t *testing.T) {
	t.Parallel()
	const secret = "3v0qk3m1S7m1Yq0c8wTq1l6o7kq4bqk0GmJ7m0o2nXU="
	for name, row := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"empty":          {"# nothing\n", 0o600, "it has no key"},
		"open to others": {november, 0o644, "chmod 600"},
		"a key alone":    {secret, 0o600, "line 1 is not an ID, a space and a key"},
		"the other way":  {secret + " 2026-11", 0o600, "line 1 has no ID before the key"},
		"too short":      {"\n2026-11 3v0qk3m1S7m1Yq0c8wTq1g==", 0o600, "line 2 has a key that is not 32 bytes as base64"},
		"as hexadecimal": {"a " + strings.Repeat("ab", 32), 0o600, "line 1 has a key that is not 32 bytes"},
		"of one byte":    {"a AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", 0o600, "one byte again and again"},
		"an ID twice": {
			november + "\n2026-11 " + strings.Fields(october)[1], 0o600, `line 2 has another key of the ID "2026-11"`,
		},
		"one key twice":     {november + "\nb " + secret, 0o600, `line 2 has the key of "2026-11" again`},
		"larger than usual": {strings.Repeat("#\n", mostKeys), 0o600, "has more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(file, []byte(row.text), row.mode); err != nil {
				t.Fatal(err)
			}
			_, err := ReadKeys(file)
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Fatalf("ReadKeys: %v, want %q", err, row.want)
			}
			for word := range strings.FieldsSeq(row.text) {
				if len(word) > 12 && strings.Contains(err.Error(), word) {
					t.Errorf("the error repeats the file: %v", err)
				}
			}
		})
	}
}

func BenchmarkAPayloadIsEncryptedAndDecrypted(b *testing.B) {
	keys, err := parse([]byte(november))
	if err != nil {
		b.Fatal(err)
	}
	codec := codecOf(keys)
	for _, size := range []int{100, 10_000, 1_000_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			payloads := []*commonpb.Payload{{Data: make([]byte, size)}}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				encrypted, err := codec.Encode(payloads)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := codec.Decode(encrypted); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
