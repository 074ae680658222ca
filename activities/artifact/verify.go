package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/spillway-ml/spillway/activities"
)

// Verify returns a reader of the bytes of digest that come from body. Its last Read wraps activities.ErrCorrupt when
// they do not match the digest, so a caller that reads to the end never uses wrong bytes; whence, such as "the file",
// says in that error what did not.
func Verify(body io.ReadCloser, digest, whence string) io.ReadCloser {
	return &verifier{body: body, digest: digest, whence: whence, sum: sha256.New()}
}

type verifier struct {
	body           io.ReadCloser
	digest, whence string
	sum            hash.Hash
	end            error // what every Read after the last one returns
}

// Read reads from the body, and checks the sum at its end.
func (v *verifier) Read(p []byte) (int, error) {
	if v.end != nil {
		return 0, v.end
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := v.body.Read(p)
	v.sum.Write(p[:n]) // a hash never returns an error
	switch {
	case err == io.EOF: // and not what wraps it: a connection that broke
		v.end = io.EOF
		if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.digest {
			v.end = fmt.Errorf("read artifact %s: %w: %s hashes to %s; where it stays so, remove it and let its "+
				"task run again", v.digest,
				activities.ErrCorrupt, v.whence, got)
		}
	case err != nil:
		v.end = fmt.Errorf("read artifact %s: %w", v.digest, err)
	}
	return n, v.end
}

// Close closes the body.
func (v *verifier) Close() error { return v.body.Close() }
