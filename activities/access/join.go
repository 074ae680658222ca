package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
)

// JoinFile holds what hosts show to join.
const JoinFile = "keys/join"

// JoinSecret is what hosts show to join. It is made anew at will: hosts that have joined show it no more. Its methods
// may be called concurrently.
type JoinSecret struct {
	dir string

	mu     sync.Mutex
	secret string // guarded by mu
}

// OpenJoinSecret reads the join secret of the state directory dir, which Open has made, and makes it where there is
// none.
func OpenJoinSecret(dir string) (*JoinSecret, error) {
	root, err := openOwn(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	s := &JoinSecret{dir: dir}
	held, err := readOwn(root, dir, JoinFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s, s.Renew()
	}
	if err != nil {
		return nil, err
	}
	s.secret = strings.TrimSuffix(string(held), "\n")
	if decoded, err := base64.RawURLEncoding.DecodeString(s.secret); err != nil || len(decoded) != sha256.Size {
		return nil, &Error{
			filepath.Join(dir, JoinFile), "holds no secret to join with",
			"remove it and start the engine again: another one is made then",
		}
	}
	return s, nil
}

// Renew makes another one; the one before counts no more.
func (s *JoinSecret) Renew() error {
	var random [sha256.Size]byte
	_, _ = rand.Read(random[:]) // it never fails
	secret := base64.RawURLEncoding.EncodeToString(random[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := Write(s.dir, JoinFile, secret); err != nil {
		return err
	}
	s.secret = secret
	return nil
}

// Text is the secret.
func (s *JoinSecret) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secret
}

// Is says whether shown is the secret. It takes the same time whatever is shown.
func (s *JoinSecret) Is(shown string) bool { return same(shown, s.Text()) }
