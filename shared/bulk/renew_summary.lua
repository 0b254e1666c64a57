-- Note that the summary of a run is being written now: no search reports the end of the run meanwhile.
-- KEYS 1 run (hash)
-- Returns nothing.
if type(redis.pcall('HGET', KEYS[1], 'callback')) == 'string' then
  redis.call('HSET', KEYS[1], 'summing_at', redis.call('TIME')[1])
end
