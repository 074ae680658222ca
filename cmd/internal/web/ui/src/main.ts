import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { live, time } from './lib/live.svelte';
import { router } from './lib/router.svelte';

router.start();
time.start();
live.start();
mount(App, { target: document.getElementById('app')! });
