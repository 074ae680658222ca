package access

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Names of the files of a state directory, relative to it; the package's documentation says what they are.
const (
	keysDir      = "keys"
	secretFile   = "keys/secret"
	TokenFile    = "keys/token"         // TokenFile holds the owner's token.
	HeaderFile   = "keys/header"        // HeaderFile holds the header with it: curl --header @FILE.
	MetricsFile  = "keys/metrics"       // MetricsFile holds the token of Prometheus.
	NATSFile     = "keys/nats.json"     // NATSFile lets the nats command in: nats --context FILE.
	TemporalFile = "keys/temporal.toml" // TemporalFile lets the temporal command in: TEMPORAL_CONFIG_FILE names it.
	PointerFile  = "keys/open.html"     // PointerFile leads a browser to a link that logs it in.
	LockFile     = "lock"               // LockFile is what an engine holds a lock on for as long as it lives.
)

// secretSize is the size of the secret, in bytes.
const secretSize = 32

// Keys are the credentials of a state directory. They are safe for concurrent use and never change. The zero value is
// not useful; use Open.
type Keys struct {
	secret [secretSize]byte
}

// Open reads the keys of the state directory dir, and makes what is missing; only who has the directory's lock may call
// it. It refuses, with an *Error that says what to do, a directory and files that others can write, secrets that others
// can read, and whatever belongs to another user. It takes the rights of others to the directory; where they could
// write to it, only if it has no keys yet and all in it is the owner's.
func Open(dir string) (*Keys, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // it was only read from, or what was written has been synced
	if err := errors.Join(claim(root), checkDir(root, dir, ".")); err != nil {
		return nil, err
	}
	if err := root.Mkdir(keysDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, &Error{
			filepath.Join(dir, keysDir), err.Error(),
			"make the state directory writable, or choose another with --state",
		}
	}
	if err := checkDir(root, dir, keysDir); err != nil {
		return nil, err
	}
	if err := root.Chmod(keysDir, 0o700); err != nil { // it was made by hand, or copied
		return nil, fmt.Errorf("make %s private: %w", filepath.Join(dir, keysDir), err)
	}
	k := &Keys{}
	if err := k.load(root, dir); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		TokenFile: k.Token(), HeaderFile: "Authorization: Bearer " + k.Token(), MetricsFile: k.MetricsToken(),
	} {
		if err := keep(root, dir, name, text); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// load reads the secret, or makes it.
func (k *Keys) load(root *os.Root, dir string) error {
	held, err := readOwn(root, dir, secretFile)
	if err == nil {
		if len(held) != secretSize {
			return &Error{
				filepath.Join(dir, secretFile), fmt.Sprintf("has %d bytes, not %d", len(held), secretSize),
				"put it back from a copy, or remove it: new credentials are made then, and results kept by other runs " +
					"are made anew",
			}
		}
		copy(k.secret[:], held)
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := rand.Read(k.secret[:]); err != nil {
		return fmt.Errorf("make the credentials of %s: %w", dir, err)
	}
	return write(root, dir, secretFile, k.secret[:])
}

// keep writes a line with a derived token, unless it is there already.
func keep(root *os.Root, dir, name, line string) error {
	held, err := readOwn(root, dir, name)
	if err == nil && string(held) == line+"\n" {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return write(root, dir, name, []byte(line+"\n"))
}

// Write keeps what is for one tool and holds a credential, such as the configuration of the nats command, in the file
// name of the state directory dir, which only its owner can read, and ends it with a line feed. Name is NATSFile,
// TemporalFile or PointerFile. A file that says the same stays.
func Write(dir, name, content string) error {
	root, err := openOwn(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // what was written has been synced
	return keep(root, dir, name, content)
}

// write makes a file that only its owner can read, whole or not at all.
func write(root *os.Root, dir, name string, content []byte) error {
	failed := func(err error) error {
		return &Error{
			filepath.Join(dir, name), err.Error(),
			"make the state directory writable, or choose another with --state",
		}
	}
	part := name + "." + rand.Text()
	file, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failed(err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		return errors.Join(failed(err), root.Remove(part))
	}
	return nil
}

// derive is a key of its own for each purpose.
func (k *Keys) derive(purpose string) []byte {
	mac := hmac.New(sha256.New, k.secret[:])
	_, _ = io.WriteString(mac, "spillway "+purpose) // a hash takes everything
	return mac.Sum(nil)
}

func (k *Keys) token(purpose string) string {
	return base64.RawURLEncoding.EncodeToString(k.derive(purpose))
}

// Token is the owner's: everything that the engine can be asked for.
func (k *Keys) Token() string { return k.token("owner") }

// MetricsToken is that of Prometheus: it may read /metrics.
func (k *Keys) MetricsToken() string { return k.token("metrics") }

// BuildToken is that of the workflow worker of a user's build, such as "digits@0123456789ab".
func (k *Keys) BuildToken(build string) string { return k.token("build " + build) }

// HostToken is that of a host that has joined: membership is what was made up for it then, so that the token does not
// count any more when that is forgotten. The name of the host can be read from it.
func (k *Keys) HostToken(host, membership string) string {
	return host + hostSeparator + k.token("host "+host+" "+membership)
}

// hostSeparator stands between the name of a host and the rest of its token; no name has it.
const hostSeparator = "~"

// HostOf is the host that a token says that it is of; empty for a token of another kind.
func HostOf(token string) string {
	host, _, _ := strings.Cut(token, hostSeparator)
	if host == token {
		return ""
	}
	return host
}

// IsHostToken says whether shown is the token of a host with this membership.
func (k *Keys) IsHostToken(host, membership, shown string) bool {
	return membership != "" && same(shown, k.HostToken(host, membership))
}

// SealTask returns the token of a task of Temporal as a host is given it, which OpenTask takes of that host alone:
// Temporal's own are not signed, and a host could make up those of others.
func (k *Keys) SealTask(host string, task []byte) []byte {
	return append(k.taskSeal(host, task), task...)
}

// OpenTask returns what SealTask has sealed for the host.
func (k *Keys) OpenTask(host string, sealed []byte) (task []byte, genuine bool) {
	if len(sealed) < sha256.Size {
		return nil, false
	}
	task = sealed[sha256.Size:]
	return task, hmac.Equal(sealed[:sha256.Size], k.taskSeal(host, task))
}

func (k *Keys) taskSeal(host string, task []byte) []byte {
	mac := hmac.New(sha256.New, k.derive("tasks of host "+host))
	mac.Write(task)
	return mac.Sum(nil)
}

// Purposes of keys that seal. A key seals some billions of texts before two of their nonces may be the same (NIST SP
// 800-38D, section 8.3), and strangers can have as many sealed as they like: what they are given has a key of its own.
const (
	sealsDocuments = "documents"
	sealsGiven     = "given to strangers"
)

// sealing seals with the key of a purpose (AES-256-GCM).
func (k *Keys) sealing(purpose string) cipher.AEAD {
	block, _ := aes.NewCipher(k.derive(purpose)) // a key of 32 bytes never fails
	sealing, _ := cipher.NewGCMWithRandomNonce(block)
	return sealing
}

// Seal seals the text of a document of this name for Unseal (AES-256-GCM): nobody else can read it or make one up.
func (k *Keys) Seal(name string, text []byte) []byte {
	return k.sealing(sealsDocuments).Seal(nil, nil, text, []byte(name))
}

// Unseal returns what Seal has sealed for the name.
func (k *Keys) Unseal(name string, sealed []byte) (text []byte, genuine bool) {
	text, err := k.sealing(sealsDocuments).Open([]byte{}, nil, sealed, []byte(name))
	return text, err == nil
}

// SealText seals what is given to somebody who is not signed in and shows it again, such as what a sign-in has begun
// with, for UnsealText of any server of the stack. The name says what it is.
func (k *Keys) SealText(name string, text []byte) string {
	return base64.RawURLEncoding.EncodeToString(k.sealing(sealsGiven).Seal(nil, nil, text, []byte(name)))
}

// UnsealText returns what SealText has sealed for the name.
func (k *Keys) UnsealText(name, sealed string) (text []byte, genuine bool) {
	decoded, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return nil, false
	}
	text, err = k.sealing(sealsGiven).Open([]byte{}, nil, decoded, []byte(name))
	return text, err == nil
}

// proofSize is how many bytes of the code a proof has: enough that nobody finds one, and few in each message.
const proofSize = 16

// ProveGiven returns the proof with which a host shows that it was given what text says: OpenGiven takes it of that
// host alone. Nothing is kept of it, so every server with these keys takes it.
func (k *Keys) ProveGiven(host string, text []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(k.proofOf(host, text), text...))
}

// OpenGiven returns the text of a proof that ProveGiven has made for the host.
func (k *Keys) OpenGiven(host, proof string) (text []byte, genuine bool) {
	decoded, err := base64.RawURLEncoding.DecodeString(proof)
	if err != nil || len(decoded) < proofSize {
		return nil, false
	}
	text = decoded[proofSize:]
	return text, hmac.Equal(decoded[:proofSize], k.proofOf(host, text))
}

func (k *Keys) proofOf(host string, text []byte) []byte {
	mac := hmac.New(sha256.New, k.derive("attempts of host "+host))
	mac.Write(text)
	return mac.Sum(nil)[:proofSize]
}

// ArtifactsToken is that of processes of users' builds that put and open artifacts through the engine, because they
// have no credentials of the store.
func (k *Keys) ArtifactsToken() string { return k.token("artifacts") }

// GangSecret is what the hosts of a gang know each other by, and nobody else.
func (k *Keys) GangSecret(id string) string { return k.token("gang " + id) }

// FunctionSecret is the secret access key with which calls to the local function host are signed.
func (k *Keys) FunctionSecret() string { return k.token("functions") }

// IsToken says whether shown is the owner's token. It takes the same time whatever is shown.
func (k *Keys) IsToken(shown string) bool { return same(shown, k.Token()) }

// IsMetricsToken says whether shown is the token of Prometheus.
func (k *Keys) IsMetricsToken(shown string) bool { return same(shown, k.MetricsToken()) }

// IsBuildToken says whether shown is the token of the workflow worker of build.
func (k *Keys) IsBuildToken(build, shown string) bool { return same(shown, k.BuildToken(build)) }

func same(shown, want string) bool { return hmac.Equal([]byte(shown), []byte(want)) }

// signing is the key that results are signed with (RFC 8032).
func (k *Keys) signing() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(k.derive("results")) }

// Sign signs a message for Verify.
func (k *Keys) Sign(message []byte) []byte { return ed25519.Sign(k.signing(), message) }

// PublicKey verifies what Sign signed; it is no secret. It is written in hexadecimal digits, or so, by whoever hands it
// on.
func (k *Keys) PublicKey() ed25519.PublicKey {
	public, _ := k.signing().Public().(ed25519.PublicKey) // it is of no other type
	return public
}

// ReadFunctionSecret reads the secret access key of the function host of the state directory dir, which [Open] made; it
// wraps fs.ErrNotExist where there is none.
func ReadFunctionSecret(dir string) (string, error) {
	root, err := openOwn(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	if err := checkDir(root, dir, keysDir); err != nil {
		return "", err
	}
	held, err := readOwn(root, dir, secretFile)
	if err != nil {
		return "", err
	}
	k := &Keys{}
	if len(held) != len(k.secret) {
		return "", &Error{
			filepath.Join(dir, secretFile), fmt.Sprintf("has %d bytes, not %d", len(held), len(k.secret)),
			"put it back from a copy, or start the engine again",
		}
	}
	copy(k.secret[:], held)
	return k.FunctionSecret(), nil
}

// ReadToken is the owner's token of the state directory dir, for a command that talks to the engine there. It refuses
// what Open refuses, and makes nothing: the error is fs.ErrNotExist where no engine of this version has run yet.
func ReadToken(dir string) (string, error) {
	root, err := openOwn(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	if err := checkDir(root, dir, keysDir); err != nil {
		return "", err
	}
	held, err := readOwn(root, dir, TokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSuffix(string(held), "\n")
	if decoded, err := base64.RawURLEncoding.DecodeString(token); err != nil || len(decoded) != sha256.Size {
		return "", &Error{
			filepath.Join(dir, TokenFile), "holds no token",
			"remove it and start the engine again: it writes it anew",
		}
	}
	return token, nil
}
