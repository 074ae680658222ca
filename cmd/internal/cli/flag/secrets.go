package flag

import (
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/payloads"
	"github.com/spillway-ml/spillway/cmd/internal/secrets"
)

// addSecrets adds the flags that name what is secret of runs.
func (f *Stack) addSecrets() {
	f.Set.StringVar(&f.payloadKeys, "payload-keys-file", "", "`FILE` of mode 0600 with keys, each a line of an ID and 32 "+
		"bytes as base64: what Temporal is given is encrypted with the first, and decrypted with all (default in clear)")
	f.Set.StringVar(&f.secretsDir, "secrets-dir", "", "`DIR` with a file of mode 0600 for each secret that stages name, "+
		"in DIR/APP where it is for one app or chain alone; it is read again for each attempt (default no secrets)")
}

// secretsDirectory returns the directory of secrets with its absolute path, empty for none. It refuses one that is not
// there.
func (f *Stack) secretsDirectory() (secrets.Directory, error) {
	if f.secretsDir == "" {
		return "", nil
	}
	path, err := filepath.Abs(f.secretsDir)
	if err == nil {
		_, err = os.ReadDir(path)
	}
	if err != nil {
		return "", &fault.UsageError{
			Problem: "--secrets-dir: " + err.Error(), Hint: "give a directory that there is, with a file for each secret",
		}
	}
	return secrets.Directory(path), nil
}

// payloadKeysFile returns the absolute path of the file of payload keys, empty for none. It refuses one that cannot be
// used, and repeats nothing of it.
func (f *Stack) payloadKeysFile() (string, error) {
	if f.payloadKeys == "" {
		return "", nil
	}
	file, err := filepath.Abs(f.payloadKeys)
	if err == nil {
		_, err = payloads.ReadKeys(file)
	}
	if err != nil {
		return "", &fault.UsageError{
			Problem: "--payload-keys-file: " + err.Error(),
			Hint:    `make a key with: (umask 077; echo "$(date +%F) $(openssl rand -base64 32)" > FILE)`,
		}
	}
	return file, nil
}
