package flag

import (
	"path/filepath"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/payloads"
)

// addSecrets adds the flags that name what is secret of runs.
func (f *Stack) addSecrets() {
	f.Set.StringVar(&f.payloadKeys, "payload-keys-file", "", "`FILE` of mode 0600 with keys, each a line of an ID and 32 "+
		"bytes as base64: what Temporal is given is encrypted with the first, and decrypted with all (default in clear)")
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
