-- Definitions for scripts that read the records of shards: `state|attempt|worker|done|failed|tries`. It uses no KEYS
-- and no ARGV. `records.py` accepts the same records.
local SHARD_STATES = {queued = true, running = true, succeeded = true, failed = true, cancelled = true}

-- Return the fields of a record. A shard without a record, or with a damaged one, has the state `none`.
local function parse_shard_record(text)
  local fields = {string.match(text or '', '^(%l+)|([^|]*)|([^|]*)|(%d+)|(%d+)|(%d+)$')}
  return SHARD_STATES[fields[1]] and fields or {'none', '', '', '0', '0', '0'}
end

-- Count the shards and samples of a run anew, without the damaged records.
local function recount_run(run, shards)
  local counts, images, failed = {}, 0, 0
  for _, text in ipairs(redis.call('HVALS', shards)) do
    local record = parse_shard_record(text)
    counts[record[1]] = (counts[record[1]] or 0) + 1
    images, failed = images + record[4], failed + record[5]
  end
  redis.call('HSET', run, 'images', images, 'failed_images', failed)
  for state in pairs(SHARD_STATES) do redis.call('HSET', run, 'shards:' .. state, counts[state] or 0) end
end
