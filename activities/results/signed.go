package results

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Signing says whose results are taken. The zero value takes none and cannot keep any.
type Signing struct {
	// Public is the key of the engine: results that it did not sign are none. It is no secret.
	Public ed25519.PublicKey
	// Sign signs a message so that Public verifies it. It may be nil where nothing is kept.
	Sign func(message []byte) []byte
}

// signed is a result with the very bytes that were signed: it is passed on as it was made, also by who cannot sign.
type signed struct {
	kept      wire.Kept
	data      []byte
	signature []byte

	subject  string // where it was found
	sequence uint64
}

func (m signed) header() nats.Header {
	return nats.Header{wire.SignatureHeader: {base64.StdEncoding.EncodeToString(m.signature)}}
}

// sign encodes a result and signs it.
func (s Signing) sign(kept wire.Kept) (signed, error) {
	data, err := json.Marshal(kept)
	if err != nil {
		return signed{}, err
	}
	return signed{kept: kept, data: data, signature: s.Sign(data)}, nil
}

// Genuine says whether a message with a result is one that the engine has signed, and lies where it may.
func (s Signing) Genuine(subject string, header nats.Header, data []byte) bool {
	_, genuine := s.verify(subject, header, data)
	return genuine
}

// verify reads a result. Genuine is false for one that the engine did not sign, and for one that lies where results of
// other input, by other code or of another run are looked for. What a run took lies with its results, whoever made it.
func (s Signing) verify(subject string, header nats.Header, data []byte) (message signed, genuine bool) {
	signature, err := base64.StdEncoding.DecodeString(header.Get(wire.SignatureHeader))
	if err != nil || len(s.Public) != ed25519.PublicKeySize || !ed25519.Verify(s.Public, data, signature) {
		return signed{}, false
	}
	message = signed{data: data, signature: signature}
	if json.Unmarshal(data, &message.kept) != nil {
		return signed{}, false
	}
	made := wire.ResultSubject(message.kept.Key, message.kept.Run)
	taken, _ := strings.CutSuffix(wire.TakenSubject(message.kept.Key, ""), "*")
	return message, subject == made || strings.HasPrefix(subject, taken)
}
