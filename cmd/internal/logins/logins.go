// Package logins keeps what servers have let this user in with, in a file of the user's configuration that nobody else
// can read.
package logins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// Login is what one server has let this user in with.
type Login struct {
	// Token is what it is shown; it is a secret.
	Token string `json:"token"`
	// Name is as whom, and Until when the session ends at the latest.
	Name  string    `json:"name"`
	Until time.Time `json:"until"`
	// CA are the certificates, as PEM, of who has signed the server's; empty are those that this machine trusts.
	CA string `json:"ca,omitempty"`
}

// File is the file of logins of one user.
type File struct {
	path string
}

// fileName is that of the file in the directory of the user's configuration of spillway.
const fileName = "logins.json"

// In is the file below the directory of the user's configuration, such as ~/.config.
func In(config string) File { return File{filepath.Join(config, "spillway", fileName)} }

// Path is where the file is.
func (f File) Path() string { return f.path }

// Server is the URL of a server as logins know it: it is reached over TLS, or on this machine.
func Server(text string) (string, error) {
	const hint = "give its address, such as https://train.example.com:7475"
	at, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || at.Host == "" || at.Path != "" || at.RawQuery != "" || at.Fragment != "" || at.User != nil {
		return "", fmt.Errorf("%.200q is no URL of a server; %s", text, hint)
	}
	address := net.ParseIP(at.Hostname())
	local := at.Hostname() == "localhost" || address != nil && address.IsLoopback()
	if at.Scheme != "https" && (at.Scheme != "http" || !local) {
		return "", fmt.Errorf("%.200q is not reached over TLS; %s", text, hint)
	}
	return at.Scheme + "://" + strings.ToLower(at.Host), nil
}

// mostBytes bounds the file.
const mostBytes = 1 << 20

// read returns all logins by the URL of the server; none where there is no file.
func (f File) read() (map[string]Login, error) {
	all := map[string]Login{}
	info, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read logins: %w", err)
	}
	if !info.Mode().IsRegular() || !safefile.Own(info) || info.Mode().Perm()&0o077 != 0 || info.Size() > mostBytes {
		return nil, fmt.Errorf("%s is no file that only this user can read (mode %04o): remove it, and log in again", f.path,
			info.Mode().Perm())
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return nil, fmt.Errorf("read logins: %w", err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w; remove it, and log in again", f.path, err)
	}
	return all, nil
}

// Get returns the login at a server.
func (f File) Get(server string) (login Login, known bool, err error) {
	all, err := f.read()
	login, known = all[server]
	return login, known, err
}

// Put keeps the login at a server, in place of the one before.
func (f File) Put(server string, login Login) error {
	return f.change(func(all map[string]Login) { all[server] = login })
}

// Remove forgets the login at a server.
func (f File) Remove(server string) error {
	return f.change(func(all map[string]Login) { delete(all, server) })
}

// change has one change follow the other, also those of other processes: each replaces the whole file.
func (f File) change(with func(map[string]Login)) (err error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("keep logins: %w", err)
	}
	lock, err := os.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("keep logins: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // which gives the lock back
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("keep logins: lock %s.lock: %w", f.path, err)
		}
	}
	all, err := f.read()
	if err != nil {
		return err
	}
	with(all)
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("keep logins: %w", err)
	}
	return safefile.WriteFile(f.path, append(text, '\n'), 0o600, false)
}
