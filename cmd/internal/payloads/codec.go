package payloads

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"
)

// What the metadata of an encrypted payload says; stored in histories.
const (
	encodingName = converter.MetadataEncoding
	encodingOf   = "binary/encrypted"
	keyName      = "encryption-key-id"
	cipherName   = "encryption-cipher"
	cipherOf     = "AES-256-GCM+HKDF-SHA256"
)

const (
	// saltSize is the size, in bytes, of what makes the key of one payload.
	saltSize = 32
	// tellEvery bounds how often it is logged that a key is missing.
	tellEvery = time.Minute
)

// UnreadableError says that a payload was encrypted with a key that is not there, or is another payload than was
// encrypted.
type UnreadableError struct {
	// Key is the ID of the key.
	Key string
	// Altered says that the key is there, and that the payload is not what it has encrypted.
	Altered bool
}

// Error implements error.
func (e *UnreadableError) Error() string {
	if e.Altered {
		return fmt.Sprintf("a payload does not fit the payload key %q: it was altered, or the key of this ID was another",
			e.Key)
	}
	return fmt.Sprintf("a payload was encrypted with the payload key %q, which this engine does not have: put it back "+
		"into --payload-keys-file", e.Key)
}

// Codec encrypts payloads and decrypts them. Payloads that were never encrypted are taken as they are, so that runs
// which were started without keys go on. Its methods may be called concurrently. Use New.
type Codec struct {
	keys   *Keys
	logger *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time // when a key was missed last, by its ID; guarded by mu
}

var _ converter.PayloadCodec = (*Codec)(nil)

// New returns a codec. Without keys it encrypts nothing, and names the key of what it cannot read.
func New(keys *Keys, logger *slog.Logger) *Codec {
	return &Codec{keys: keys, logger: logger, told: map[string]time.Time{}}
}

// Encrypts reports whether there is a key.
func (c *Codec) Encrypts() bool { return c.keys != nil }

// Encode implements converter.PayloadCodec. What it is given stays as it is.
func (c *Codec) Encode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	encoded := make([]*commonpb.Payload, len(payloads))
	for i, payload := range payloads {
		var err error
		if encoded[i], err = c.encrypt(payload); err != nil {
			return nil, err
		}
	}
	return encoded, nil
}

// Decode implements converter.PayloadCodec. The error is an *UnreadableError.
func (c *Codec) Decode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	decoded := make([]*commonpb.Payload, len(payloads))
	for i, payload := range payloads {
		var err error
		if decoded[i], err = c.decrypt(payload); err != nil {
			return nil, err
		}
	}
	return decoded, nil
}

// encrypt encrypts one with its metadata. Each has a key of its own, derived from a random salt, because AES-GCM under
// one key is safe for 2^32 messages with random nonces only (NIST SP 800-38D, 8.3), which a busy engine sends in weeks;
// so does the AWS Encryption SDK:
// https://docs.aws.amazon.com/encryption-sdk/latest/developer-guide/algorithms-reference.html
func (c *Codec) encrypt(payload *commonpb.Payload) (*commonpb.Payload, error) {
	if kept, is := unmarked(payload); is {
		return kept, nil
	}
	if !c.Encrypts() || payload == nil {
		return payload, nil
	}
	plain, err := proto.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encrypt a payload: %w", err)
	}
	first := c.keys.keys[0]
	salt := make([]byte, saltSize, saltSize+len(plain)+64)
	if _, err := rand.Read(salt); err != nil {
		return nil, fmt.Errorf("encrypt a payload: %w", err)
	}
	sealer, err := first.sealer(salt)
	if err != nil {
		return nil, fmt.Errorf("encrypt a payload: %w", err)
	}
	return &commonpb.Payload{
		Metadata: map[string][]byte{
			encodingName: []byte(encodingOf), keyName: []byte(first.id), cipherName: []byte(cipherOf),
		},
		Data: sealer.Seal(salt, nil, plain, bound(first.id)),
	}, nil
}

// decrypt is the reverse of encrypt; it takes what is not encrypted as it is.
func (c *Codec) decrypt(payload *commonpb.Payload) (*commonpb.Payload, error) {
	if kept, is := unmarked(payload); is {
		payload = kept
	}
	if string(payload.GetMetadata()[encodingName]) != encodingOf {
		return payload, nil
	}
	id := string(payload.GetMetadata()[keyName])
	one, known := c.keys.find(id)
	if !known {
		return nil, &UnreadableError{Key: id}
	}
	altered := &UnreadableError{Key: id, Altered: true}
	data := payload.GetData()
	if len(data) < saltSize || string(payload.GetMetadata()[cipherName]) != cipherOf {
		return nil, altered
	}
	opener, err := one.sealer(data[:saltSize])
	if err != nil {
		return nil, fmt.Errorf("decrypt a payload: %w", err)
	}
	plain, err := opener.Open(nil, nil, data[saltSize:], bound(id))
	if err != nil {
		return nil, altered
	}
	decrypted := new(commonpb.Payload)
	if err := proto.Unmarshal(plain, decrypted); err != nil {
		return nil, fmt.Errorf("decrypt a payload: %w", err)
	}
	return decrypted, nil
}

// bound is what is authenticated beside a payload.
func bound(id string) []byte { return []byte(cipherOf + " " + id) }

// sealer is the cipher of one payload, which puts a random nonce before what it encrypts.
func (k key) sealer(salt []byte) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.secret, salt, encryptInfo, keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// marked is a payload that cannot be decrypted, for who reads many of which one may be unreadable: whoever wants its
// value reads why not, since converters name the encoding that they do not know.
func marked(payload *commonpb.Payload, why error) *commonpb.Payload {
	metadata := maps.Clone(payload.GetMetadata())
	metadata[encodingName] = []byte("(" + why.Error() + ")")
	return &commonpb.Payload{Metadata: metadata, Data: payload.GetData()}
}

// unmarked is the payload that was marked so; is says whether it was.
func unmarked(payload *commonpb.Payload) (encrypted *commonpb.Payload, is bool) {
	metadata := payload.GetMetadata()
	if string(metadata[cipherName]) != cipherOf || !bytes.HasPrefix(metadata[encodingName], []byte("(")) {
		return nil, false
	}
	metadata = maps.Clone(metadata)
	metadata[encodingName] = []byte(encodingOf)
	return &commonpb.Payload{Metadata: metadata, Data: payload.GetData()}, true
}

// tell logs that a payload cannot be read, unless that was just said of its key.
func (c *Codec) tell(err error) {
	unreadable, is := errors.AsType[*UnreadableError](err)
	if !is {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.told[unreadable.Key]) >= tellEvery {
		c.told[unreadable.Key] = now
		c.logger.Error("what Temporal has cannot be read", "key", unreadable.Key, "error", err)
	}
}
