package access

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Root is the secret of which all credentials are made, as text, for TakeKeys on another server of the stack: nobody
// else is shown it.
func (k *Keys) Root() string { return base64.RawURLEncoding.EncodeToString(k.secret[:]) }

// AuthorityAndKey is the certificate and the key of the engine's authority, as PEM, for TakeKeys on another server of
// the stack; empty where the certificate of the port is a user's.
func (c *Certificate) AuthorityAndKey() (string, error) {
	if c.key == nil {
		return "", nil
	}
	text, err := encodeAuthority(c.authority, c.key)
	return string(text), err
}

// HasKeys says whether an engine has run on the state directory dir, or was given keys.
func HasKeys(dir string) (bool, error) {
	root, err := openOwn(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }()
	_, err = root.Lstat(secretFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// TakeKeys makes the keys of another server of a stack, Keys.Root and Certificate.AuthorityAndKey, those of the state
// directory dir, which has none yet. It refuses what Open refuses.
func TakeKeys(dir, root, authority string) error {
	secret, err := base64.RawURLEncoding.DecodeString(root)
	if err != nil || len(secret) != secretSize {
		return fmt.Errorf("what was given is no secret of a stack: it has %d bytes, not %d", len(secret), secretSize)
	}
	if authority != "" {
		if pair, err := tls.X509KeyPair([]byte(authority), []byte(authority)); err != nil || !pair.Leaf.IsCA {
			return errors.New("what was given is no authority of a stack")
		}
	}
	at, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }() // what was written has been synced
	if err := errors.Join(claim(at), checkDir(at, dir, ".")); err != nil {
		return err
	}
	if err := at.Mkdir(keysDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w", filepath.Join(dir, keysDir), err)
	}
	if err := checkDir(at, dir, keysDir); err != nil {
		return err
	}
	for _, name := range []string{secretFile, AuthorityFile} {
		if _, err := at.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return &Error{
				filepath.Join(dir, name), "is there already: this state directory has keys of its own",
				"choose an empty state directory with --state",
			}
		}
	}
	if authority != "" { // the secret last: without it nothing was taken
		if err := write(at, dir, AuthorityFile, []byte(authority)); err != nil {
			return err
		}
	}
	err = write(at, dir, secretFile, secret)
	if err != nil && authority != "" {
		err = errors.Join(err, removeIf(at, AuthorityFile))
	}
	return err
}

func removeIf(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
