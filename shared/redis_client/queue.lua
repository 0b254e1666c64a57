-- Definitions for all scripts that use queues. shared/redis_client/scripts.py puts this file before
-- each script. It uses no KEYS and no ARGV, and returns nothing.
-- A queue such as `imagefleet.shapes.64x64@gold` is one Redis list per priority level. Workers know
-- the names of their own queues. They find the queues of tenants, and those of jobs with add-ons that some
-- workers lack (`imagefleet.shapes.64x64&style@gold`), in the set `imagefleet:queues`, and remove those
-- that are empty from it.
local LEVELS = {'', '\6\0223', '\6\0226', '\6\0229'}  -- the suffixes of kombu, highest priority first

-- End the script if an answer of redis.pcall is an error, but not that of a key that holds another type. A server of a
-- cluster gives such an error if the key has just moved to another server.
local function end_unless_readable(answer)
  if type(answer) == 'table' and answer.err and not string.find(answer.err, 'WRONGTYPE', 1, true) then
    error(answer.err, 0)
  end
end

-- Read a key whose name the script makes from others, so that the caller has not declared it. Return the answer, or the
-- error of a key that holds another type, which anybody may have written there. Any other error ends the script. Scripts
-- use it where a key that has moved must not count as missing, and read it before they write.
local function read_derived(...)
  local answer = redis.pcall(...)
  end_unless_readable(answer)
  return answer
end

-- Return the tenant of a queue or of one of its lists, nil if it has none.
local function tenant_of(queue) return string.match(queue, '@([^@\6]*)') end

-- Return the queue that a list belongs to.
local function queue_of(list) return string.match(list, '^[^\6]*') end

-- Queues that may hold messages of the highest level are in a set of their own, so that workers find these
-- among very many queues. A queue may be missing there (release 0.1.0 does not know the set): then workers find
-- it later, as they find the others.
local URGENT = LEVELS[1]
local function urgent_queues(known) return known .. ':0' end

-- Forget a queue that is empty. Return 1, or 0 if it was not known.
local function forget_queue(known, queue)
  redis.pcall('SREM', urgent_queues(known), queue)  -- a key of another type holds no names
  return redis.call('SREM', known, queue)
end

-- Rename a key that holds another type than the wanted one, which anybody may have written there.
local function set_aside_unless(wanted, key)
  local kind = redis.call('TYPE', key).ok
  if kind == wanted or kind == 'none' then return end
  local suffix = ':no-' .. wanted
  redis.log(redis.LOG_WARNING, key .. ' is no ' .. wanted .. ' but a ' .. kind .. '; it gets the suffix ' .. suffix)
  redis.call('RENAME', key, key .. suffix)
end

-- Return how many members a set has, whatever its key holds.
local function set_size(key)
  local size = redis.pcall('SCARD', key)
  if type(size) == 'number' then return size end
  set_aside_unless('set', key)
  return 0
end

-- Add a member to a set, whatever its key holds.
local function add_member(key, member)
  if type(redis.pcall('SADD', key, member)) == 'number' then return end
  set_aside_unless('set', key)
  redis.call('SADD', key, member)
end

-- Push a message: with 'LPUSH' behind all others of its list, with 'RPUSH' before them. Make its queue known to
-- workers. This cannot fail because a key holds something else: anybody may have written that, and it is renamed.
local function push_message(command, list, message)
  set_aside_unless('list', list)
  redis.call(command, list, message)
  local known, queue = string.match(list, '^[^.]*') .. ':queues', queue_of(list)
  add_member(known, queue)
  if list == queue .. URGENT then add_member(urgent_queues(known), queue) end
end

-- Put a message back to the head of its list, where the next claim finds it.
local function requeue_message(list, message) push_message('RPUSH', list, message) end

-- Return whether the record of a job has another request than the message with this SHA-1 of it ('': not known): the
-- job of the message was deleted, and its id given to another job.
local function is_superseded(record, request_sha1)
  local request = request_sha1 ~= '' and redis.pcall('HGET', record, 'request')
  return type(request) == 'string' and redis.sha1hex(request) ~= request_sha1
end

-- Return list and message of what a claim or a delay stored; nil if it is damaged.
local function split_entry(entry)
  local cut = string.find(entry, '\0', 1, true)
  if not cut then return nil end
  return string.sub(entry, 1, cut - 1), string.sub(entry, cut + 1)
end
