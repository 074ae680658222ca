package access

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
)

// A command line is let in as a device is (RFC 8628): it is given a code of its own, the device code, with which it
// asks again and again, and a user code, which who signs in elsewhere compares and confirms. Nothing is kept of a code
// that was only given out, so that strangers fill no store: the device code is sealed, and the user code bears a check
// by which a mistyped one is known.

// DeviceLife is how long a command line may wait to be let in.
const DeviceLife = 10 * time.Minute

const (
	// userAlphabet has no vowels, so that no code is a word, and no letters that look alike (RFC 8628, section 6.1).
	userAlphabet = "BCDFGHJKLMNPQRSTVWXZ"
	userRandom   = 8 // letters that are random: 34 bits, which count for DeviceLife
	userCheck    = 4 // letters that check them
)

// Errors of the codes of a command line.
var (
	// ErrUserCode says that a user code is mistyped or too old, ErrDevice that a device code is none or too old.
	ErrUserCode = errors.New("the code is mistyped, or older than ten minutes")
	ErrDevice   = errors.New("nobody let this command line in within ten minutes")
	// ErrDevicePending says that nobody has confirmed yet, ErrDeviceDenied that somebody has refused.
	ErrDevicePending = errors.New("nobody has let this command line in yet")
	ErrDeviceDenied  = errors.New("this command line was refused")
	// ErrDeviceTaken says that somebody else has signed in for the same code.
	ErrDeviceTaken = errors.New("somebody has signed in for this code already")
)

// Device is what a command line is given that wants to be let in.
type Device struct {
	// Code is what it asks with; it is a secret.
	Code string
	// UserCode is what who signs in compares, such as "BCDF-GHJK-LMNP".
	UserCode string
	// Until is when both end to count.
	Until time.Time
}

// deviceCode is what a device code seals.
type deviceCode struct {
	UserCode string    `json:"user_code"`
	Until    time.Time `json:"until"`
}

const deviceSeal = "device code"

// NewDevice returns what a command line is given that wants to be let in now.
func (k *Keys) NewDevice(now time.Time) Device {
	var letters strings.Builder
	for range userRandom {
		letters.WriteByte(letter(rand.Reader))
	}
	until := now.Add(DeviceLife)
	code := letters.String() + k.userCheck(letters.String(), period(now))
	text, err := json.Marshal(deviceCode{code, until})
	if err != nil {
		panic(err) // a text and a time encode
	}
	return Device{Code: k.SealText(deviceSeal, text), UserCode: grouped(code), Until: until}
}

// letter is a random one of the alphabet, each as likely as any other.
func letter(random io.Reader) byte {
	for {
		var one [1]byte
		_, _ = io.ReadFull(random, one[:]) // crypto/rand never fails
		if n := int(one[0]); n < 256-256%len(userAlphabet) {
			return userAlphabet[n%len(userAlphabet)]
		}
	}
}

// period counts the times of DeviceLife.
func period(now time.Time) int64 { return now.Unix() / int64(DeviceLife.Seconds()) }

// userCheck are the letters that check others which were made in a period.
func (k *Keys) userCheck(letters string, period int64) string {
	mac := hmac.New(sha256.New, k.derive("user code"))
	_, _ = io.WriteString(mac, letters) // a hash takes everything
	mac.Write(binary.BigEndian.AppendUint64(nil, uint64(period)))
	sum := mac.Sum(nil)
	check := make([]byte, userCheck)
	for i := range check {
		check[i] = userAlphabet[int(sum[i])%len(userAlphabet)]
	}
	return string(check)
}

func grouped(code string) string { return code[:4] + "-" + code[4:8] + "-" + code[8:] }

// CheckUserCode returns a user code as it is written, however it was typed, and ErrUserCode for one that no server of
// the stack has given out of late.
func (k *Keys) CheckUserCode(typed string, now time.Time) (string, error) {
	code := strings.Map(func(r rune) rune {
		if strings.ContainsRune(userAlphabet, r) {
			return r
		}
		return -1
	}, strings.ToUpper(typed[:min(len(typed), 100)]))
	if len(code) != userRandom+userCheck {
		return "", ErrUserCode
	}
	checks := []string{
		k.userCheck(code[:userRandom], period(now)), k.userCheck(code[:userRandom], period(now)-1),
	}
	if !slices.ContainsFunc(checks, func(check string) bool { return same(code[userRandom:], check) }) {
		return "", ErrUserCode
	}
	return grouped(code), nil
}

// proposed is a session that somebody has signed in for. It stays until its time is over, also when the command line
// has been given the session: an answer may get lost, and is given again then.
type proposed struct {
	Session Session   `json:"session"`
	Confirm string    `json:"confirm"` // digest of what the browser that has signed in shows to confirm it
	Until   time.Time `json:"until"`
	State   string    `json:"state"` // one of the states below
	// Taken is when the command line has asked first after it was confirmed, in whole seconds; zero before.
	Taken time.Time `json:"taken,omitzero"`
}

const (
	stateOpen      = "open"
	stateConfirmed = "confirmed"
	stateDenied    = "denied"
	stateTaken     = "taken" // the session was made
)

// isOf says whether it is of who has this name or subject.
func (p proposed) isOf(who string) bool { return p.Session.Name == who || p.Session.Subject == who }

// Propose keeps the session that a command line with this user code is to be given, once who has signed in for it
// confirms that with the secret that it returns.
func (s *Sessions) Propose(ctx context.Context, userCode string, session Session, now time.Time) (
	secret string, err error,
) {
	userCode, err = s.keys.CheckUserCode(userCode, now)
	if err != nil {
		return "", err
	}
	secret = rand.Text()
	next := proposed{Session: session, Confirm: digestOfToken(secret), Until: now.Add(DeviceLife), State: stateOpen}
	return secret, s.requests.Change(ctx, digestOfToken(userCode), func(there proposed, known bool) (proposed, error) {
		if known && now.Before(there.Until) && (there.State != stateOpen || there.Session.Issuer != session.Issuer ||
			there.Session.Subject != session.Subject) {
			return there, ErrDeviceTaken
		}
		return next, nil
	})
}

// Decide confirms or denies what was proposed for a user code, by who has the secret of Propose, and returns the
// session as it will be.
func (s *Sessions) Decide(ctx context.Context, userCode, secret string, confirmed bool, now time.Time) (
	decided Session, err error,
) {
	err = s.requests.Change(ctx, digestOfToken(userCode), func(there proposed, known bool) (proposed, error) {
		if !known || !now.Before(there.Until) || !same(digestOfToken(secret), there.Confirm) || there.State != stateOpen {
			return there, ErrUserCode
		}
		there.State = stateDenied
		if confirmed {
			there.State = stateConfirmed
		}
		decided = there.Session
		return there, nil
	})
	return decided, err
}

// Collect makes the session that was confirmed for a device code, for who asks from an address, and returns what is
// shown for it. Until the code ends it returns the same again, since the answer may have been lost; it wraps
// ErrNoSession where the session has ended meanwhile.
func (s *Sessions) Collect(ctx context.Context, code, from string, now time.Time) (
	token string, session Session, err error,
) {
	var device deviceCode
	text, genuine := s.keys.UnsealText(deviceSeal, code)
	if !genuine || json.Unmarshal(text, &device) != nil {
		return "", session, ErrDevice
	}
	request := digestOfToken(grouped(device.UserCode))
	there, known := s.requests.Get(request)
	switch {
	case known && there.State == stateDenied:
		return "", session, ErrDeviceDenied
	case !now.Before(device.Until):
		return "", session, ErrDevice
	case !known || there.State == stateOpen:
		return "", session, ErrDevicePending
	}
	there, err = s.claim(ctx, request, from, now)
	if err != nil {
		return "", session, err
	}
	token = s.keys.commandLineToken(request, there)
	if there.State == stateTaken {
		session, known = s.await(ctx, digestOfToken(token), now.Sub(there.Taken) < settling)
		if !known {
			return "", session, errEnded()
		}
		return token, session, nil
	}
	if err := s.makeAs(ctx, token, there.Session, now); err != nil {
		return "", session, fmt.Errorf("let the command line in: %w", err)
	}
	return token, there.Session, s.conclude(ctx, request, there)
}

// errEnded says that a command line comes too late for its session.
func errEnded() error { return fmt.Errorf("%w for this command line any more", ErrNoSession) }

// claim notes that a command line has asked for what was confirmed: when that was, and from where, say what session it
// is given, however often it asks.
func (s *Sessions) claim(ctx context.Context, request, from string, now time.Time) (claimed proposed, err error) {
	err = s.requests.Change(ctx, request, func(there proposed, known bool) (proposed, error) {
		if !known || there.State != stateConfirmed && there.State != stateTaken {
			return there, ErrDevice
		}
		if there.Taken.IsZero() {
			there.Taken, there.Session.From = now.UTC().Truncate(time.Second), from
		}
		claimed = there
		return there, nil
	})
	return claimed, err
}

// conclude notes that the session of a request was made. Where the request was withdrawn meanwhile, the session ends.
func (s *Sessions) conclude(ctx context.Context, request string, claimed proposed) error {
	err := s.requests.Change(ctx, request, func(there proposed, known bool) (proposed, error) {
		if !known || there.Confirm != claimed.Confirm {
			return there, errEnded()
		}
		there.State, there.Session.Refresh = stateTaken, "" // the session has it
		return there, nil
	})
	if !errors.Is(err, ErrNoSession) {
		return err
	}
	ended := s.End(context.WithoutCancel(ctx), digestOfToken(s.keys.commandLineToken(request, claimed)))
	if ended != nil && !errors.Is(ended, ErrNoSession) {
		return ended
	}
	return err
}

// withdraw takes back what was proposed for a command line, and ends the session where it was just made. It says how
// many of both there were, 1 at most; of a request whose session was taken only that counts, with the other sessions.
func (s *Sessions) withdraw(ctx context.Context, request, who string) (withdrawn int, err error) {
	var there proposed
	err = s.requests.Change(ctx, request, func(now proposed, known bool) (proposed, error) {
		there = now
		if known && !now.isOf(who) {
			return now, ErrDeviceTaken
		}
		return now, documents.Remove
	})
	switch {
	case errors.Is(err, ErrDeviceTaken): // somebody else has signed in for it meanwhile
		return 0, nil
	case err != nil:
		return 0, err
	case there.State == stateOpen, there.State == stateConfirmed && there.Taken.IsZero():
		return 1, nil
	case there.State == stateConfirmed:
		err = s.End(ctx, digestOfToken(s.keys.commandLineToken(request, there)))
		if errors.Is(err, ErrNoSession) {
			err = nil
		}
		return 1, err
	}
	return 0, nil
}

// commandLineToken is what is shown for the session that a request was claimed for: always the same.
func (k *Keys) commandLineToken(request string, claimed proposed) string {
	mac := hmac.New(sha256.New, k.derive("session of a command line"))
	_, _ = io.WriteString(mac, request+" "+claimed.Confirm) // a hash takes everything
	return k.sessionTokenOf(claimed.Taken, mac.Sum(nil)[:sessionRandom])
}
