package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"

	"github.com/spillway-ml/spillway/activities/documents"
)

// The join secrets that there are, by name.
const (
	// HostsJoin is what hosts show to join.
	HostsJoin = "join"
	// ServersJoin is what another server shows to be given the keys of the stack: who has it has everything.
	ServersJoin = "servers"
)

// JoinSecret is what is shown to join, the same at all servers of a stack. It is made anew at will: who has joined
// shows it no more. Its methods may be called concurrently.
type JoinSecret struct {
	name    string
	secrets *documents.Set[joinDocument]
}

// joinDocument is a join secret as it is kept.
type joinDocument struct {
	Secret string `json:"secret"`
}

// OpenJoinSecret returns a join secret that is among the documents, and makes it where it is not.
func OpenJoinSecret(ctx context.Context, shared *documents.Documents, name string) (*JoinSecret, error) {
	s := &JoinSecret{name: name, secrets: documents.Of[joinDocument](shared, "secret", nil)}
	return s, s.secrets.Change(ctx, name, func(there joinDocument, known bool) (joinDocument, error) {
		if known {
			return there, nil
		}
		return joinDocument{newSecret()}, nil
	})
}

// Renew makes another one; the one before counts no more.
func (s *JoinSecret) Renew(ctx context.Context) error {
	next := joinDocument{newSecret()}
	return s.secrets.Change(ctx, s.name, func(joinDocument, bool) (joinDocument, error) { return next, nil })
}

func newSecret() string {
	var random [sha256.Size]byte
	_, _ = rand.Read(random[:]) // it never fails
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// Text is the secret.
func (s *JoinSecret) Text() string {
	there, _ := s.secrets.Get(s.name)
	return there.Secret
}

// Is says whether shown is the secret. It takes the same time whatever is shown.
func (s *JoinSecret) Is(shown string) bool {
	secret := s.Text()
	return secret != "" && same(shown, secret)
}
