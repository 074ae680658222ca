package access

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spillway-ml/spillway/activities/documents"
)

// Files of engines of 2026-11-27 and before, which shared nothing.
const (
	tokensFile = "keys/tokens.json"
	joinFile   = "keys/join"
	// TakenIn ends the name of a file that was taken in among the documents. Nothing reads it any more.
	TakenIn = ".taken-in"
	// mostTokensBytes bounds the first.
	mostTokensBytes = 1 << 20
)

// TakeIn takes in what an engine of before kept in the state directory dir: the tokens that were made for others, and
// what hosts show to join. A file counts whole for its kind: where the documents have something already, the stack was
// taken back to that engine since, and what was revoked or renewed there stays so. The files are renamed, so that what
// is revoked later is not taken in again.
func TakeIn(ctx context.Context, dir string, shared *documents.Documents) error {
	root, err := openOwn(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // what was renamed stays so
	take := func(name string, most int64, keep func(held []byte) error) error {
		held, err := readOwnUpTo(root, dir, name, most)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = keep(held)
		}
		if err == nil {
			err = root.Rename(name, name+TakenIn)
		}
		if err != nil {
			return fmt.Errorf("take in %s: %w", filepath.Join(dir, name), err)
		}
		return nil
	}
	return errors.Join(
		take(tokensFile, mostTokensBytes, func(held []byte) error { return takeTokens(ctx, dir, held, shared) }),
		take(joinFile, longest, func(held []byte) error { return takeJoin(ctx, dir, held, shared) }),
	)
}

func takeTokens(ctx context.Context, dir string, held []byte, shared *documents.Documents) error {
	var tokens []Issued
	if json.Unmarshal(held, &tokens) != nil {
		return &Error{
			filepath.Join(dir, tokensFile), "cannot be read",
			"put it back from a copy, or remove it: tokens that were made for others do not count any more then",
		}
	}
	issued := documents.Of[Issued](shared, "token", nil)
	gone := issued.All()
	for _, one := range tokens {
		delete(gone, one.Name)
		if err := issued.Change(ctx, one.Name, func(Issued, bool) (Issued, error) { return one, nil }); err != nil {
			return err
		}
	}
	for name := range gone {
		err := issued.Change(ctx, name, func(there Issued, _ bool) (Issued, error) { return there, documents.Remove })
		if err != nil {
			return err
		}
	}
	return nil
}

func takeJoin(ctx context.Context, dir string, held []byte, shared *documents.Documents) error {
	secret := strings.TrimSuffix(string(held), "\n")
	if decoded, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(decoded) != sha256.Size {
		return &Error{
			filepath.Join(dir, joinFile), "holds no secret to join with",
			"remove it and start the engine again: another one is made then",
		}
	}
	secrets := documents.Of[joinDocument](shared, "secret", nil)
	return secrets.Change(ctx, HostsJoin, func(joinDocument, bool) (joinDocument, error) {
		return joinDocument{secret}, nil
	})
}
