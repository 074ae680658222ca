// Package config reads the settings of an engine from where they may be said: its configuration file, the environment
// and the command line. A setting is a flag: its name is the key in the file, and what the flag takes is what the file
// takes. So nothing is declared twice, and a new flag is a new key.
//
// What wins is, in this order: the command line, the environment, the file, the default.
package config
